"""State that libraries keep in module and class attributes, to which no notebook name leads: a cell must find the notebook's.

``Accelerator()`` keeps in three classes the state that all its objects share, Keras its default dtype in a module. For libraries whose
objects are sent, so are containers, plain values and thread-locals that differ from the module's source text. The reader takes them over.
Changes by a cell are sent home, and engines are reset after the cell.
"""

from __future__ import annotations

import copy
import importlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from ..analysis.imports import brought
from ..integrations.registry import states_of_libraries
from .frame_references import references_held
from .global_hooks import HOOKS, drop_hooks, set_hooks
from .library_changes import MISSING, PLAIN_CONTAINERS, Place, changed_places, modules_of, packages_of
from .library_text import first_values, set_by_conditions, shared_by_all
from .open_registries import OPEN_TO_ALL, SAFE_GLOBALS, own_entries, put_entries

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype)


@dataclass(eq=False)
class LibraryState:
    """The state at one place in a library, to be set at the same place of another process.

    Attributes
    ----------
    place : tuple of str
    held : object
        The items of a container, the attributes of a thread-local, or else the value itself.
    kind : {"items", "entries", "attributes", "value", "object"}
        "entries" are added to existing ones. An "object" is the library's own, which may have been assigned to another place.
    """

    place: Place
    held: Any
    kind: str

    def __reduce__(self) -> Any:
        return _placed, (self.place, self.kind), self.held, None, None, _put


def library_states(objects: Iterable[object] = (), *, also: Iterable[Place] = (), but: Container[Place] = ()) -> list[Any]:
    """Return the changed state of the libraries of `objects`, and the state at the places `also`, except the places `but`."""
    if _apart:
        return []
    modules = sys.modules.copy()
    found: list[Any] = [*states_of_libraries(), *_own_entries()]
    places: dict[Place, None] = dict.fromkeys(also)
    for package in packages_of(objects):
        for module in modules_of(package, modules):
            places.update(dict.fromkeys(place for place in changed_places(module) if place not in but))
    states = (state for place in places if (state := _state_at(place)) is not None)
    return [*found, *(state for state in states if not stays_here(state))]


def _own_entries() -> Iterator[LibraryState]:
    for place, own in own_entries(_before or ()):
        if not stays_here(state := LibraryState(place, own, "entries")) or place in OPEN_TO_ALL:
            yield state


def stays_here(state: LibraryState) -> bool:
    """Return whether `state` is known not to be picklable."""
    return state.place in _stay and _stay[state.place] == _like(state)


def is_apart() -> bool:
    """Return whether libraries are left alone, because the cell distributes itself."""
    return _apart


def stays(states: Iterable[object]) -> None:
    """Do not send `states`, which cannot be pickled, again until their places have other contents."""
    _stay.update((state.place, _like(state)) for state in states if isinstance(state, LibraryState))


_stay: dict[Place, Any] = {}


def _like(state: LibraryState) -> Any:
    """Return a value that changes when the place of `state` gets other contents."""
    if state.kind == "object":
        with suppress(AttributeError):
            return [id(state.held), *map(id, object.__getattribute__(state.held, "__dict__").values())]
        return id(state.held)
    return [*map(id, state.held.values() if isinstance(state.held, dict) else state.held)] if state.kind != "value" else id(state.held)


# -- where and what --------------------------------------------------------------------------------------------------


def owner_of(place: Place) -> Any:
    """Return the module or class of a place, ``None`` if there is none."""
    module, kind, _ = place
    found = sys.modules.get(module)
    if found is None:
        with brought(), suppress(Exception):
            found = importlib.import_module(module)
    for part in kind.split(".") if kind else ():
        found = getattr(found, part, None)
    return found


def _state_at(place: Place) -> LibraryState | None:
    owner = owner_of(place)
    now = getattr(owner, "__dict__", {}).get(place[2], MISSING)
    if now is MISSING:
        return None
    if place in _objects:
        return LibraryState(place, now, "object")
    if isinstance(now, threading.local):
        return LibraryState(place, dict(vars(now)), "attributes")
    if type(now) in PLAIN_CONTAINERS:
        return LibraryState(place, now.copy(), "items")
    return LibraryState(place, now, "value")


def _placed(place: Place, kind: str) -> LibraryState:
    return LibraryState(place, None, kind)


def _put(state: LibraryState, held: Any) -> None:
    """Set `held` at its place in this process."""
    state.held = held
    if _apart:
        return
    if state.place in HOOKS:
        set_hooks(state.place, held)
    if state.place in HOOKS or (owner := owner_of(state.place)) is None:
        return
    name = state.place[2]
    now = vars(owner).get(name, MISSING)
    if state.kind == "object":
        if _before is not None and now is not MISSING:
            _before.setdefault(state.place, LibraryState(state.place, now, "object"))
            _objects[state.place] = held
        if now is not held:
            setattr(owner, name, held)
        return
    note_place(state.place)
    if state.kind == "attributes" and isinstance(now, threading.local):
        vars(now).clear()
        vars(now).update(held)
    elif state.kind == "entries":
        put_entries(owner, now, held)
    elif state.kind == "items" and type(now) is type(held):
        now.clear()
        (now.extend if isinstance(now, list | deque) else now.update)(held)
    elif state.kind != "attributes":
        with suppress(Exception):
            setattr(owner, name, held)


# -- on an engine ------------------------------------------------------------------------------------------------------

_before: dict[Place, LibraryState | None] | None = None
_objects: dict[Place, Any] = {}  # objects that came with a cell
_apart = False


def note_place(place: Place) -> None:
    """Record the contents of `place` before they are replaced."""
    if _before is not None and place not in _before:
        _before[place] = _state_at(place)


@contextmanager
def left_as_it_was(*, apart: bool = False) -> Iterator[Callable[[Iterable[object]], None]]:
    """Undo, at the end of the ``with`` block, what is set in libraries within it.

    Parameters
    ----------
    apart : bool
        Set nothing in libraries: the cell distributes itself, and must find them as in a new process.

    Returns
    -------
    callable
        Takes objects whose libraries the cell itself may have changed.
    """
    global _before, _apart
    _before, _apart = {}, apart
    note_place(SAFE_GLOBALS)
    _objects.clear()
    told: list[object] = []
    try:
        with references_held():
            yield told.extend
    finally:
        noted, _before, _apart = _before, None, False
        drop_hooks()
        with suppress(Exception):
            modules = sys.modules.copy()
            for package in packages_of(told):
                for module in modules_of(package, modules):
                    _forget(module, noted)
        _objects.clear()
        for state in noted.values():
            with suppress(Exception):
                if state is not None:
                    _put(state, state.held)


def arrived() -> list[Place]:
    """Return the places that were set by what came with the cell, except objects that are still in their places."""
    return [place for place in _before or () if place not in OPEN_TO_ALL and not (place in _objects and _has(place, _objects[place]))]


def has_come(place: Place) -> bool:
    """Return whether an object that came with the cell was set at `place`."""
    return place in _objects


def _has(place: Place, obj: object) -> bool:
    return vars(owner_of(place)).get(place[2]) is obj


def _forget(module: ModuleType, noted: dict[Place, LibraryState | None]) -> None:
    """Record initial values for the changes that a cell has left in `module`, so that they are undone."""
    first = {(kind, name): value for kind, name, value in first_values(module)}
    changed = list(changed_places(module))
    uncertain = set_by_conditions(module) if changed else set()
    for place in changed:
        state = _state_at(place)
        if place in noted or state is None:
            continue
        is_certain = bool(place[1]) or place[2] not in uncertain
        if state.kind == "value":
            if isinstance(state.held, _PLAIN) and is_certain:
                noted[place] = LibraryState(place, first[place[1:]], "value")
        elif isinstance(first[place[1:]], PLAIN_CONTAINERS) and first[place[1:]]:  # a container of plain values that the source text fills
            if is_certain:
                noted[place] = LibraryState(place, copy.deepcopy(first[place[1:]]), "items")
        elif state.kind == "attributes" or place[2] in shared_by_all(module):  # imports may fill other containers
            noted[place] = LibraryState(place, type(state.held)(), state.kind)

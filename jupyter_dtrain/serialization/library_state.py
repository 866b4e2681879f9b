"""State that a library keeps in its modules and classes, and no name of a notebook leads to: a cell is to find the notebook's there.

``Accelerator()`` leaves in three classes what all their objects share, Keras its default type in a module. Of the libraries whose
objects go along, so does what is other than the text of the module says that it is at first: containers, plain values and
thread-locals. It becomes the reader's own. What a cell has changed comes home, and an engine's is as it was when the cell is over.
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
from .library_changes import MISSING, PLAIN_CONTAINERS, Place, changed_places, is_the_notebooks, modules_of, packages_of
from .library_text import first_values, set_by_conditions, shared_by_all

_OPEN_TO_ALL: tuple[Place, ...] = (("torch.distributions.kl", "", "_KL_REGISTRY"), ("torch.utils._pytree", "", "SUPPORTED_NODES"))
"""Registries of PyTorch: of them, what is of the notebook's classes goes along."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype)


@dataclass(eq=False)
class LibraryState:
    """What there is at a place of a library, to be put into the same place of another process.

    Attributes
    ----------
    place : tuple of str
    held : object
        The items of a container or the attributes of a thread-local there, or else the value itself.
    kind : {"items", "entries", "attributes", "value", "object"}
        Entries are put beside those that are there. An object is the library's own, and may have been put at another place.
    """

    place: Place
    held: Any
    kind: str

    def __reduce__(self) -> Any:
        return _placed, (self.place, self.kind), self.held, None, None, _put


def library_states(objects: Iterable[object] = (), *, also: Iterable[Place] = (), but: Container[Place] = ()) -> list[Any]:
    """Return what is other than at first in the libraries that `objects` belong to, and what is at the places `also`, `but` for some."""
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
    for place in _OPEN_TO_ALL:
        registry = getattr(sys.modules.get(place[0]), place[2], {})
        own = {key: value for key, value in registry.items() if any(map(is_the_notebooks, key if isinstance(key, tuple) else (key,)))}
        if own:
            yield LibraryState(place, own, "entries")


def stays_here(state: LibraryState) -> bool:
    """Return whether `state` cannot be sent."""
    return state.place in _stay and _stay[state.place] == _like(state)


def is_apart() -> bool:
    """Return whether nothing is put into libraries."""
    return _apart


def stays(states: Iterable[object]) -> None:
    """Send none of `states` again, which cannot be, until there is something else."""
    _stay.update((state.place, _like(state)) for state in states if isinstance(state, LibraryState))


_stay: dict[Place, Any] = {}


def _like(state: LibraryState) -> Any:
    """Return what tells whether something else is at the place of `state` than before."""
    if state.kind == "object":
        with suppress(AttributeError):
            return [id(state.held), *map(id, object.__getattribute__(state.held, "__dict__").values())]
        return id(state.held)
    return [*map(id, state.held.values() if isinstance(state.held, dict) else state.held)] if state.kind != "value" else id(state.held)


# -- where and what --------------------------------------------------------------------------------------------------


def owner_of(place: Place) -> Any:
    """Return the module or the class that a place is in, ``None`` where there is none."""
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
    """Let `held` be at its place in this process."""
    state.held = held
    if _apart:
        return
    owner = owner_of(state.place)
    if owner is None:
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
        now.update(held)
        getattr(owner, "_KL_MEMOIZE", {}).clear()  # what was found without them
    elif state.kind == "items" and type(now) is type(held):
        now.clear()
        (now.extend if isinstance(now, list | deque) else now.update)(held)
    elif state.kind != "attributes":
        with suppress(Exception):
            setattr(owner, name, held)


# -- an engine's own -------------------------------------------------------------------------------------------------

_before: dict[Place, LibraryState | None] | None = None
_objects: dict[Place, Any] = {}  # that came with a cell
_apart = False


def note_place(place: Place) -> None:
    """Note what is at `place` before something is put there."""
    if _before is not None and place not in _before:
        _before[place] = _state_at(place)


@contextmanager
def left_as_it_was(*, apart: bool = False) -> Iterator[Callable[[Iterable[object]], None]]:
    """Put back, at the end of the ``with`` block, what is put into libraries within it.

    Parameters
    ----------
    apart : bool
        Nothing is put into libraries: the cell distributes itself, and is to find them as a new process does.

    Returns
    -------
    callable
        To be told of objects whose libraries the cell may have changed itself.
    """
    global _before, _apart
    _before, _apart = {}, apart
    _objects.clear()
    told: list[object] = []
    try:
        yield told.extend
    finally:
        noted, _before, _apart = _before, None, False
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
    """Return the places of libraries into which something was put that came with the cell; of an object's, if it has another now."""
    return [place for place in _before or () if place not in _OPEN_TO_ALL and not (place in _objects and _has(place, _objects[place]))]


def has_come(place: Place) -> bool:
    """Return whether an object came with the cell that is at `place`."""
    return place in _objects


def _has(place: Place, obj: object) -> bool:
    return vars(owner_of(place)).get(place[2]) is obj


def _forget(module: ModuleType, noted: dict[Place, LibraryState | None]) -> None:
    """Let what a cell has left in `module` be as at first."""
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
        elif isinstance(first[place[1:]], PLAIN_CONTAINERS) and first[place[1:]]:  # a container that the text fills, of plain values
            if is_certain:
                noted[place] = LibraryState(place, copy.deepcopy(first[place[1:]]), "items")
        elif state.kind == "attributes" or place[2] in shared_by_all(module):  # another container may be filled by imports
            noted[place] = LibraryState(place, type(state.held)(), state.kind)

"""State that a library keeps in its modules and classes, and no name of a notebook leads to: a cell is to find the notebook's there.

``Accelerator()`` leaves in three classes what all their objects share, Keras its default type in a module. Of the libraries whose
objects go along, so does what is other than the text of the module says that it is at first: containers, plain values and
thread-locals. It becomes the reader's own. What a cell has changed comes home, and an engine's is as it was when the cell is over.
"""

from __future__ import annotations

import copy
import importlib
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from ..analysis.code_objects import installed_folders
from ..analysis.imports import brought
from ..integrations.registry import states_of_libraries
from .library_text import EMPTY, first_values, set_by_conditions, shared_by_all
from .symbols import is_symbol

Place = tuple[str, str, str]  # a module, a class in it or "", and the name

EVERYBODYS = frozenset(
    {"torch", "numpy", "pandas", "pyarrow", "scipy", "matplotlib", "cloudpickle", "traitlets", "tqdm", "psutil", "zmq", "tornado", "comm"}
    | {"IPython", "ipykernel", "ipyparallel", "ipywidgets", "anywidget", "jupyter_client", "jupyter_core", "matplotlib_inline"}
    | {"wandb", "mlflow", "dask", "distributed", "tensorboard", __name__.partition(".")[0], "__main__", "__mp_main__", "tests", "pytest"}
)
"""Packages whose state is none of this module's: settings say what of it goes along, or it is a process's own."""
_OPEN_TO_ALL: tuple[Place, ...] = (("torch.distributions.kl", "", "_KL_REGISTRY"), ("torch.utils._pytree", "", "SUPPORTED_NODES"))
"""Registries of PyTorch: of them, what is of the notebook's classes goes along."""
_OF_THE_PROCESS = re.compile(
    r"(?:^|_)(?:init|inited|started|loaded|registered|avail|available|checked|warned|warn_once|lock|locked|pid)(?:_|$)|initiali[sz]ed",
    re.IGNORECASE,
)
"""Names of what says, with a yes, a no or a count, what a library has done in this process, which another has still to do."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype)
_CODE = (FunctionType, BuiltinFunctionType, MethodType, type, ModuleType)
_CONTAINERS = (dict, list, set, deque)
_MISSING = object()


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
            places.update(dict.fromkeys(place for place in _changed(module) if place not in but))
    states = (state for place in places if (state := _state_at(place)) is not None)
    return [*found, *(state for state in states if not stays_here(state))]


def _own_entries() -> Iterator[LibraryState]:
    for place in _OPEN_TO_ALL:
        registry = getattr(sys.modules.get(place[0]), place[2], {})
        own = {key: value for key, value in registry.items() if any(map(is_the_notebooks, key if isinstance(key, tuple) else (key,)))}
        if own:
            yield LibraryState(place, own, "entries")


def packages_of(objects: Iterable[object]) -> list[str]:
    """Return the libraries that `objects` belong to, but for those whose state is looked after elsewhere."""
    objects = list(objects)
    kinds = set(map(type, objects))
    named = {kind for kind in kinds if kind is ModuleType or kind is FunctionType or issubclass(kind, type)}
    homes = {getattr(kind, "__module__", None) for kind in kinds}
    homes.update(getattr(obj, "__name__" if type(obj) is ModuleType else "__module__", None) for obj in objects if type(obj) in named)
    packages = {home.partition(".")[0] for home in homes if isinstance(home, str)}
    return sorted(packages - EVERYBODYS - sys.stdlib_module_names)


def stays_here(state: LibraryState) -> bool:
    """Return whether `state` cannot be sent."""
    return state.place in _stay and _stay[state.place] == _like(state)


def is_apart() -> bool:
    """Return whether nothing is put into libraries."""
    return _apart


def is_of_the_process(name: str, value: object) -> bool:
    """Return whether `value`, called so, says what a library has done in this process."""
    return (value is None or issubclass(type(value), int)) and _OF_THE_PROCESS.search(name) is not None


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


def modules_of(package: str, modules: dict[str, ModuleType]) -> Iterator[ModuleType]:
    """Yield those of `modules` that belong to `package`, unless it lies beside the notebook."""
    if _lies_beside(modules.get(package)):
        return  # it goes along as it is
    known = _names.get(package)
    if known is None or known[0] != len(modules):
        beginning = package + "."
        known = _names[package] = len(modules), [name for name in modules if name == package or name.startswith(beginning)]
    yield from (module for name in known[1] if isinstance(module := modules.get(name), ModuleType))


_names: dict[str, tuple[int, list[str]]] = {}  # of the modules of a library, by how many modules there are: thousands, of all libraries


def _lies_beside(module: ModuleType | None) -> bool:
    """Return whether `module` is one of the notebook's own, in its folder."""
    file = getattr(module, "__dict__", {}).get("__file__")
    if not isinstance(file, str) or file.startswith(installed_folders()) or "site-packages" in file:
        return False
    return Path(file).resolve().is_relative_to(Path.cwd().resolve())


def _changed(module: ModuleType) -> Iterator[Place]:
    names = vars(module)
    for kind, name, first in first_values(module):
        owner = names.get(kind) if kind else module
        if kind and not (isinstance(owner, type) and owner.__module__ == module.__name__):
            continue
        now = vars(owner).get(name, _MISSING)
        if now is not first and now is not _MISSING and _is_other(name, first, now):
            yield module.__name__, kind, name


def _is_other(name: str, first: Any, now: Any) -> bool:
    kind = type(now)  # a proxy may load what it stands for, or raise, where `isinstance` looks at its ``__class__``
    if issubclass(kind, threading.local):
        return first is EMPTY and bool(vars(now))
    items: Iterable[Any] = now.values() if issubclass(kind, dict) else now if issubclass(kind, _CONTAINERS) else ()
    if isinstance(first, _CONTAINERS) and first and kind is type(first):
        return _differ(now, first) and not any(_is_code(item) for item in items)
    if issubclass(kind, _CONTAINERS):
        return any(not _is_code(item) or is_the_notebooks(item) for item in items)
    if first is EMPTY or _is_code(now):  # an object of its own, which may be as it was
        return False
    if is_of_the_process(name, now):
        return False
    return kind is not type(first) or _differ(now, first)


def _is_code(value: object) -> bool:
    return issubclass(type(value), _CODE) or is_symbol(value)


def is_the_notebooks(code: Any) -> bool:
    """Return whether a function or a class is no library's: a callback, an entry in a registry."""
    if isinstance(code, MethodType | BuiltinFunctionType) and not isinstance(code.__self__, ModuleType | type | None):
        code = type(code.__self__)
        if code.__module__ == "builtins":
            return True
    return getattr(code, "__module__", None) == "__main__"


def _differ(now: Any, first: Any) -> bool:
    try:
        return bool(now != first)
    except Exception:  # of arrays, say
        return True


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
    now = getattr(owner, "__dict__", {}).get(place[2], _MISSING)
    if now is _MISSING:
        return None
    if place in _objects:
        return LibraryState(place, now, "object")
    if isinstance(now, threading.local):
        return LibraryState(place, dict(vars(now)), "attributes")
    if type(now) in _CONTAINERS:
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
    now = vars(owner).get(name, _MISSING)
    if state.kind == "object":
        if _before is not None and now is not _MISSING:
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
    changed = list(_changed(module))
    uncertain = set_by_conditions(module) if changed else set()
    for place in changed:
        state = _state_at(place)
        if place in noted or state is None:
            continue
        is_certain = bool(place[1]) or place[2] not in uncertain
        if state.kind == "value":
            if isinstance(state.held, _PLAIN) and is_certain:
                noted[place] = LibraryState(place, first[place[1:]], "value")
        elif isinstance(first[place[1:]], _CONTAINERS) and first[place[1:]]:  # a container that the text fills, of plain values
            if is_certain:
                noted[place] = LibraryState(place, copy.deepcopy(first[place[1:]]), "items")
        elif state.kind == "attributes" or place[2] in shared_by_all(module):  # another container may be filled by imports
            noted[place] = LibraryState(place, type(state.held)(), state.kind)

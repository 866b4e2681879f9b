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
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from ..analysis.code_objects import installed_folders
from ..integrations.registry import states_of_libraries
from .library_text import EMPTY, first_values, set_by_conditions, shared_by_all

Place = tuple[str, str, str]  # a module, a class in it or "", and the name

_EVERYBODYS = frozenset(
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
    kind : {"items", "entries", "attributes", "value"}
        Entries are put beside those that are there.
    """

    place: Place
    held: Any
    kind: str

    def __reduce__(self) -> Any:
        return _placed, (self.place, self.kind), self.held, None, None, _put


def library_states(objects: Iterable[object] = (), *, also: Iterable[Place] = ()) -> list[Any]:
    """Return what is other than at first in the libraries that `objects` belong to, and what is at the places `also`."""
    if _apart:
        return []
    modules = sys.modules.copy()
    found: list[Any] = [*states_of_libraries(), *_own_entries()]
    places: dict[Place, None] = dict.fromkeys(also)
    for package in packages_of(objects):
        for module in _modules_of(package, modules):
            places.update(dict.fromkeys(_changed(module)))
    states = (state for place in places if (state := _state_at(place)) is not None)
    return [*found, *(state for state in states if _stay.get(state.place) != _like(state))]


def _own_entries() -> Iterator[LibraryState]:
    for place in _OPEN_TO_ALL:
        registry = getattr(sys.modules.get(place[0]), place[2], {})
        own = {key: value for key, value in registry.items() if any(map(_is_the_notebooks, key if isinstance(key, tuple) else (key,)))}
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
    return sorted(packages - _EVERYBODYS - sys.stdlib_module_names)


def stays(states: Iterable[object]) -> None:
    """Send none of `states` again, which cannot be, until there is something else."""
    _stay.update((state.place, _like(state)) for state in states if isinstance(state, LibraryState))


_stay: dict[Place, Any] = {}


def _like(state: LibraryState) -> Any:
    """Return what tells whether something else is at the place of `state` than before."""
    return [*map(id, state.held.values() if isinstance(state.held, dict) else state.held)] if state.kind != "value" else id(state.held)


# -- objects that share their attributes with their class ------------------------------------------------------------


def reduced_state(obj: object) -> Any:
    """Return how an object reduces whose attributes are those of its class (a Borg)."""
    if _apart:  # what this process's ranks are is nothing to the notebook's class
        return NotImplemented
    kind = type(obj)
    known = _dicts_of_classes.get(id(kind))  # a weak dict would take as long as all else
    if known is None or known[0]() is not kind:
        dicts = ((base, name) for base in kind.__mro__ for name, value in vars(base).items() if type(value) is dict)
        named = tuple(base_and_name for base_and_name in dicts if base_and_name[1] != "__annotations__")
        known = _dicts_of_classes[id(kind)] = weakref.ref(kind), named
    if known[1]:
        own = getattr(obj, "__dict__", None)
        found = next((pair for pair in known[1] if isinstance(own, dict) and vars(pair[0]).get(pair[1]) is own), None)
        if found is not None:
            return _sharing, (kind, *found), {**own}, None, None, _share  # type: ignore[dict-item]
    return NotImplemented


_dicts_of_classes: dict[int, tuple[weakref.ref[type], tuple[tuple[type, str], ...]]] = {}


def _sharing(kind: Any, base: Any, name: str) -> Any:
    obj = kind.__new__(kind)
    if _apart:
        return obj
    shared = vars(base)[name]
    _note((base.__module__, base.__qualname__, name))
    obj.__dict__ = shared
    return obj


def _share(obj: Any, attributes: dict[str, Any]) -> None:
    own = vars(obj)
    own.clear()
    own.update(attributes)


# -- where and what --------------------------------------------------------------------------------------------------


def _modules_of(package: str, modules: dict[str, ModuleType]) -> Iterator[ModuleType]:
    if _lies_beside(modules.get(package)):
        return  # it goes along as it is
    beginning = package + "."
    for name, module in modules.items():
        if (name == package or name.startswith(beginning)) and isinstance(module, ModuleType):
            yield module


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
        return any(not _is_code(item) or _is_the_notebooks(item) for item in items)
    if first is EMPTY or _is_code(now):  # an object of its own, which may be as it was
        return False
    if (now is None or issubclass(kind, int)) and _OF_THE_PROCESS.search(name):
        return False
    return kind is not type(first) or _differ(now, first)


def _is_code(value: object) -> bool:
    return issubclass(type(value), _CODE)


def _is_the_notebooks(code: Any) -> bool:
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


def _owner(place: Place) -> Any:
    module, kind, _ = place
    found = sys.modules.get(module)
    if found is None:
        with suppress(Exception):
            found = importlib.import_module(module)
    for part in kind.split(".") if kind else ():
        found = getattr(found, part, None)
    return found


def _state_at(place: Place) -> LibraryState | None:
    owner = _owner(place)
    now = getattr(owner, "__dict__", {}).get(place[2], _MISSING)
    if now is _MISSING:
        return None
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
    owner = _owner(state.place)
    if owner is None:
        return
    _note(state.place)
    name = state.place[2]
    now = vars(owner).get(name, _MISSING)
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
_apart = False


def _note(place: Place) -> None:
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
    told: list[object] = []
    try:
        yield told.extend
    finally:
        noted, _before, _apart = _before, None, False
        with suppress(Exception):
            modules = sys.modules.copy()
            for package in packages_of(told):
                for module in _modules_of(package, modules):
                    _forget(module, noted)
        for state in noted.values():
            with suppress(Exception):
                if state is not None:
                    _put(state, state.held)


def arrived() -> list[Place]:
    """Return the places of libraries into which something was put that came with the cell."""
    return [place for place in _before or () if place not in _OPEN_TO_ALL]


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

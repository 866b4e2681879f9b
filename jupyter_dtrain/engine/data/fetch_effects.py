"""Whether fetching samples has side effects: a cache that fills, a count, a printed line, a previous sample kept for mixing.

A sample, or the side effect of loading it, then depends on all samples loaded before in the same process, so each rank must load what a
single process would. This is decided from the code of the dataset, its transforms and the collate function, and of the functions that they
call by name (:mod:`.stores`), because a side effect may be missing for the first samples and occur for later ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import islice
from types import BuiltinMethodType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import DataLoader

from ...analysis.code_objects import closed_over, names_in, original_code
from ...serialization.python_reducers import attribute_holders
from ...serialization.shared_tensors import is_in_shared_memory, shared_tensor
from ...serialization.shared_values import content_of, is_shared_value
from ..tensor.placement_types import GlobalTensor
from ..user_frames import is_users, is_users_module
from .fetch import has_rows
from .method_names import MUTATING
from .stores import Writes, writes_of
from .value_kinds import Kind

_Cached = type(lru_cache(lambda: None))
_MOST, _WIDTH = 2000, 64  # most objects visited, in total and of one container
_PLAIN = (int, float, str, bytes, type(None), torch.Tensor, np.ndarray, np.generic, torch.dtype, torch.device)
_ENTERED = frozenset(("__getitem__", "__getitems__", "__call__", "forward", "__iter__", "__next__", "__enter__", "__exit__", "__getattr__"))
_WRITERS = frozenset(("__setitem__", "__delitem__", "__iadd__", "__next__", "__setattr__", "write"))
_PRINTS = frozenset(("print", "display"))
_MADE_WITH = frozenset(("__init__", "__new__", "__post_init__", "__setattr__"))
_OF_DATA_SETS = {"__getitem__": Kind.NEW, "__getitems__": Kind.NEW}


def has_effects(loader: DataLoader[Any]) -> bool:
    """Return whether fetching and collating samples of `loader` may change existing objects, print, or write files."""
    return not has_rows(loader) and _Reached.from_loader(loader).have_effects()


def tells_others(loader: DataLoader[Any]) -> bool:
    """Return whether reading iterable data in a worker may print or write to shared memory: one process must then read all of it."""
    reached = _Reached.from_loader(loader)
    reached.enter(loader.worker_init_fn)
    has_effects = reached.have_effects()
    return not reached.names.isdisjoint(_PRINTS) or (bool(reached.shared) and has_effects)


def shared_and_changed(loader: DataLoader[Any]) -> list[Any]:
    """Return the memory shared between processes that fetching and collating samples may change: tensors, and contents of a ``Value``."""
    reached = _Reached.from_loader(loader)
    if has_rows(loader) or not reached.have_effects():
        return []
    tensors = {held.untyped_storage().data_ptr(): held for held in reached.shared if isinstance(held, torch.Tensor)}
    contents = [content for held in reached.shared if (content := content_of(held)) is not None]
    return [*tensors.values(), *{id(content): content for content in contents}.values()]


@dataclass(frozen=True)
class _Called:
    """A user-defined function that is called, and the kinds of its arguments."""

    function: FunctionType
    first: Kind
    others: Kind


@dataclass
class _Reached:
    """Objects and functions reachable from a dataset and a collate function."""

    keeps_results: bool = False
    """A function that caches results, a bound method of a list (``log = notes.append``) or a layer that keeps statistics is called."""
    shared: list[Any] = field(default_factory=list)
    """Tensors, parts of a ``multiprocessing.Value``, locks and the like, which processes share."""
    called: dict[FunctionType, _Called] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    _pending: deque[Any] = field(default_factory=deque)
    _seen: dict[int, Any] = field(default_factory=dict)
    _kinds: set[type] = field(default_factory=set)

    @classmethod
    def from_loader(cls, loader: DataLoader[Any]) -> _Reached:
        """Return what a loader's dataset and collate function reach, to be visited."""
        reached = cls()
        reached.enter(loader.dataset)
        reached.collate(loader.collate_fn)
        return reached

    def enter(self, value: object) -> None:
        """Add an object to visit."""
        self._pending.append(value)

    def collate(self, function: Any) -> None:
        """Add a collate function, which receives a new list, of samples that may be parts of the dataset's own objects."""
        while isinstance(function, partial):
            self._pending.extend((*function.args, *function.keywords.values()))
            function = function.func
        method = function if isinstance(function, MethodType) else vars(type(function)).get("__call__")
        if isinstance(function, FunctionType):
            self._call(function, Kind.NEW_OUTSIDE, Kind.SHARED)
        elif isinstance(method, MethodType) and isinstance(method.__func__, FunctionType):
            self._call(method.__func__, Kind.SHARED, Kind.NEW_OUTSIDE)
        elif isinstance(method, FunctionType):
            self._call(method, Kind.SHARED, Kind.NEW_OUTSIDE)
        self.enter(function)

    def have_effects(self) -> bool:
        """Visit everything; return whether a called function changes existing objects."""
        before = -1
        while self._pending or before < len(self.called):
            before = len(self.called)
            while self._pending and len(self._seen) < _MOST:
                self._look(self._pending.popleft())
            self._pending.clear()
            self._resolve()
        if self.keeps_results:
            return True
        own = frozenset(function.__name__ for function in self.called)
        found = [(one, writes_of(one.function, first=one.first, others=one.others, own=own)) for one in self.called.values()]
        return any(writes.shared for _, writes in found) or _is_given_what_it_changes(found)

    def _look(self, value: Any) -> None:
        self.shared += _shared_in(value)
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        match value:
            case FunctionType():
                if is_users(value.__code__.co_filename):
                    self._call(value, Kind.GIVEN, Kind.GIVEN)
                else:
                    self._pending.extend(closed_over(value))  # the function that a decorator wraps
            case MethodType():
                self._pending.extend((value.__self__, value.__func__))
            case BuiltinMethodType() | MethodWrapperType():
                self.keeps_results |= _changes_its_own(value)
            case partial():
                self._pending.extend((value.func, *value.args, *value.keywords.values()))
            case _Cached():
                self.keeps_results |= _is_of_user(value)
            case list() | tuple() | set() | dict() | deque():
                self._pending.extend(islice(value.values() if isinstance(value, dict) else value, _WIDTH))
                self._meet(type(value))
            case type():
                self._meet(value)
            case ModuleType():
                pass
            case torch.nn.Module() if any(isinstance(part, _NormBase) and part.training for part in value.modules()):
                self.keeps_results = True  # running statistics
            case _:
                self._meet(type(value))
                for holder in attribute_holders(value):
                    self._pending.extend(islice(holder.values(), _WIDTH))

    def _meet(self, kind: type) -> None:
        self._kinds.update(owner for owner in kind.__mro__ if is_users_module(str(owner.__module__)) and owner not in self._kinds)

    def _call(self, function: FunctionType, first: Kind, others: Kind) -> None:
        if function in self.called or not is_users(function.__code__.co_filename):
            return
        self.called[function] = _Called(function, first, others)
        names = names_in(original_code(function.__code__) or function.__code__)
        self.names |= names
        self._pending.extend(closed_over(function))
        for name in names:
            value = function.__globals__.get(name)
            self.shared += [shared for part in _parts_of(value) for shared in _shared_in(part)]
            if isinstance(value, ModuleType):
                if is_users_module(value.__name__):
                    self._pending.extend(vars(value).get(other) for other in names)
            elif _is_followed(value):
                self._pending.append(value)

    def _resolve(self) -> None:
        """Add the used methods of all classes that were met."""
        for kind in list(self._kinds):
            for name, value in list(vars(kind).items()):
                if name not in self.names and name not in _ENTERED and not (name in _MADE_WITH and kind.__name__ in self.names):
                    continue
                self.keeps_results |= isinstance(value, _Cached | cached_property)
                for function in _functions_in(value):
                    is_static = isinstance(value, staticmethod)
                    first = Kind.GIVEN if is_static else Kind.NEW if name in _MADE_WITH else Kind.SHARED
                    self._call(function, first, _OF_DATA_SETS.get(name, Kind.GIVEN))


def _functions_in(value: object) -> Iterator[FunctionType]:
    parts = (value.fget, value.fset) if isinstance(value, property) else (getattr(value, "__func__", value),)
    for part in parts:
        if isinstance(part, FunctionType):
            yield part
            yield from (inner for inner in closed_over(part) if isinstance(inner, FunctionType))  # wrapped by a decorator


def _changes_its_own(method: Any) -> bool:
    """Return whether a bound built-in method modifies its owner."""
    owner, name = method.__self__, method.__name__
    return not isinstance(owner, ModuleType | type | None) and (name in MUTATING or name in _WRITERS)


def _shared_in(value: Any) -> Sequence[Any]:
    """Return what a value has in memory shared between processes: nothing, or one object."""
    tensor = shared_tensor(value) if isinstance(value, np.ndarray) else value
    if isinstance(tensor, torch.Tensor):  # a batch of the cell's is not shared, though a dataset's attribute may have its name
        return () if isinstance(tensor, GlobalTensor) or not is_in_shared_memory(tensor) else (tensor,)
    return (value,) if is_shared_value(value) or type(value).__module__.startswith("multiprocessing.") else ()


def _parts_of(value: object) -> Iterator[object]:
    """Yield `value` and, if it is a list, tuple or dict, its items."""
    yield value
    if isinstance(value, list | tuple | dict):
        yield from islice(value.values() if isinstance(value, dict) else value, _WIDTH)


def _is_of_user(cached: Any) -> bool:
    function = getattr(cached, "__wrapped__", None)
    return isinstance(function, FunctionType) and is_users(function.__code__.co_filename)


def _is_followed(value: object) -> bool:
    if value is None or isinstance(value, _PLAIN):
        return False
    kind = value if isinstance(value, type) else type(value)
    if isinstance(value, BuiltinMethodType | MethodWrapperType):
        return True
    if isinstance(value, FunctionType | MethodType | partial | _Cached) or is_users_module(str(kind.__module__)):
        return kind.__module__ != "builtins" or isinstance(value, FunctionType)
    return not isinstance(value, type) and callable(value) and hasattr(value, "__dict__")  # a transform of a library


def _is_given_what_it_changes(found: list[tuple[_Called, Writes]]) -> bool:
    """Return whether a function that writes to its arguments may be called with objects that existed before."""
    changing = {one.function.__name__ for one, writes in found if writes.given and Kind.GIVEN in (one.first, one.others)}
    if not changing:
        return False
    by_any_name = bool(changing & {"__call__", "forward", "<lambda>"})
    calls = [call for _, writes in found for call in writes.calls.items()]
    return any(given in (Kind.SHARED, Kind.NEW_OUTSIDE) and (by_any_name or name in changing) for name, given in calls)

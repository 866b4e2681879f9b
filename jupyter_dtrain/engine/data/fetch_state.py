"""State that fetching samples may change: save it, compare it later, and restore it.

State is saved and compared one level deep for each object: attributes and items by identity, small tensors and arrays by value. Large
tensors are compared by version counters only and are not restored.
"""

from __future__ import annotations

import array
import io
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import islice
from types import BuiltinMethodType, CellType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np
import torch

from ...analysis.code_objects import names_in, original_code
from ...serialization.copy_restore import Contents, restore
from ...serialization.item_restore import items_of
from ...serialization.python_reducers import attribute_holders
from ...serialization.shared_values import is_shared_value
from ..forward.containers import copy_of, is_same, refill
from ..user_frames import is_users, is_users_module

_MOST, _WIDTH, _LONGEST = 2000, 64, 1_000_000  # most objects visited; visited in one container; items of a container that is copied
_LARGE = 1 << 20  # most bytes of a tensor or array that is copied
_PLAIN = (int, float, str, bytes, type(None), ModuleType, np.generic, torch.dtype, torch.device)
_CONTAINERS = (list, dict, set, deque)
_STREAMS = (io.StringIO, io.BytesIO, bytearray, array.array)
_FOLLOWED = (*_CONTAINERS, *_STREAMS, torch.Tensor, np.ndarray, torch.nn.Module)
_MISSING = object()


class FetchState:
    """Saved state reachable from a dataset and a collate function.

    Parameters
    ----------
    roots : object
        The objects with which samples are loaded and collated.
    """

    def __init__(self, *roots: object) -> None:
        self._holders: list[tuple[Any, Any]] = []
        self._numbers: list[tuple[Any, int, Any]] = []
        self._streams: list[tuple[Any, Any]] = []
        self._names: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._seen: dict[int, Any] = {}
        pending = deque(roots)
        while pending and len(self._seen) < _MOST:
            value = pending.popleft()
            if not isinstance(value, _PLAIN) and id(value) not in self._seen:
                self._seen[id(value)] = value
                pending.extend(self._note(value))

    def changed(self) -> bool:
        """Return whether any of the state has changed."""
        return (
            any(not is_same(holder, before) for holder, before in self._holders)
            or any(not _is_value(value, version, before) for value, version, before in self._numbers)
            or any(items_of(stream) != before for stream, before in self._streams)
            or any(names.get(name, _MISSING) is not value for names, before in self._names for name, value in before.items())
            or any(_content(cell) is not value for cell, value in self._cells)
            or any(not is_same(dict(vars(kind)), before) for kind, before in self._classes)
        )

    def restore(self) -> None:
        """Restore the saved state."""
        for holder, before in self._holders:
            refill(holder, before)
        for value, version, before in self._numbers:
            if before is not None and not _is_value(value, version, before):
                if isinstance(value, torch.Tensor):
                    value.data.copy_(before)
                else:
                    value[...] = before
        for stream, items in self._streams:
            restore(stream, Contents(items))
        for names, values in self._names:
            for name, value in values.items():
                if value is _MISSING:
                    names.pop(name, None)
                elif names.get(name, _MISSING) is not value:
                    names[name] = value
        for cell, value in self._cells:
            if value is not _MISSING and _content(cell) is not value:
                cell.cell_contents = value
        for kind, before in self._classes:
            for name in vars(kind).keys() - before.keys():
                delattr(kind, name)
            for name, value in before.items():
                if vars(kind).get(name, _MISSING) is not value:
                    setattr(kind, name, value)

    def _note(self, value: Any) -> Iterable[Any]:
        """Save the state of `value`; return the objects to visit next."""
        match value:
            case torch.Tensor():
                small = value.layout == torch.strided and value.nbytes <= _LARGE
                self._numbers.append((value, value._version if not value.is_inference() else 0, value.detach().clone() if small else None))
            case _ if isinstance(value, _STREAMS) or is_shared_value(value):  # includes in-memory copies of the notebook's open files
                self._streams.append((value, items_of(value)))
            case np.ndarray():
                if value.nbytes <= _LARGE and not value.dtype.hasobject and value.flags.writeable:
                    self._numbers.append((value, 0, value.copy()))
            case FunctionType():
                return self._of_function(value)
            case MethodType():
                return value.__self__, value.__func__
            case BuiltinMethodType() | MethodWrapperType():  # `log = notes.append`
                return (value.__self__,)
            case partial():
                return value.func, *value.args, *value.keywords.values()
            case list() | dict() | set() | deque() if len(value) <= _LONGEST:
                self._holders.append((value, copy_of(value)))
                return list(islice(value.values() if isinstance(value, dict) else value, _WIDTH))
            case tuple() | frozenset():
                return list(islice(value, _WIDTH))
            case type():
                if is_users_module(str(value.__module__)):
                    self._classes.append((value, dict(vars(value))))
                    return [part for part in vars(value).values() if isinstance(part, (*_CONTAINERS, FunctionType))]
            case _:
                holders = attribute_holders(value)
                self._holders += ((holder, copy_of(holder)) for holder in holders)
                return type(value), *(part for holder in holders for part in islice(holder.values(), _WIDTH))
        return ()

    def _of_function(self, function: FunctionType) -> Iterable[Any]:
        cells = list(function.__closure__ or ())
        self._cells += ((cell, _content(cell)) for cell in cells)
        around = [_content(cell) for cell in cells]
        if not is_users(function.__code__.co_filename):
            return [value for value in around if isinstance(value, FunctionType)]  # the function that a decorator wraps
        names = names_in(original_code(function.__code__) or function.__code__)
        used = {name: function.__globals__.get(name, _MISSING) for name in names if not name.startswith("__")}
        self._names.append((function.__globals__, used))
        found = (*used.values(), *around, *(function.__defaults__ or ()))
        return [value for value in found if isinstance(value, _FOLLOWED) or is_shared_value(value) or _is_of_user(value)]


def _is_of_user(value: Any) -> bool:
    if isinstance(value, FunctionType | BuiltinMethodType | MethodWrapperType):
        return True
    return is_users_module(str((value if isinstance(value, type) else type(value)).__module__))


def _is_value(value: Any, version: int, before: Any) -> bool:
    if isinstance(value, torch.Tensor):
        if before is None:
            return bool(value.is_inference() or value._version == version)
        now = value.detach()
        if now.shape != before.shape or torch.equal(now, before):
            return bool(now.shape == before.shape)
        return bool(now.is_floating_point() and torch.allclose(now, before, 0.0, 0.0, equal_nan=True))
    return bool(value.shape == before.shape and value.tobytes() == before.tobytes())


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty cell
        return _MISSING

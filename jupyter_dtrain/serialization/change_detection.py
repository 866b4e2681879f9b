"""Detection of changed objects: marks of their contents at one moment, to compare with later.

An unchanged object costs a comparison and is not sent home. Comparing large data could take longer than the cell. For these the system
is asked whether their pages were written to (:mod:`..system.page_map`).
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from ..system.interpreter import collection_paused
from ..system.page_map import PrivateMappings, untouched
from .cached_functions import is_notebooks, mark_of
from .copy_restore import ABSENT, GRAPH, Contents, attributes_of
from .cut_graphs import grad_fn_name, grad_fn_of
from .item_restore import bytes_of, is_frame, items_of, marks_of_frame, once
from .iterators import is_iterator, place_of
from .leaves import Numbers
from .torch_reducers import as_array

LARGE = 1 << 20  # bytes of a tensor or array from which the system is asked for writes to it


class Baseline:
    """The contents of objects at one moment, to determine later which have changed.

    Parameters
    ----------
    objects : sequence of object
        Kept alive, in this order, until the comparison.
    """

    def __init__(self, objects: Sequence[object]) -> None:
        self.objects = objects
        mappings = PrivateMappings()
        with collection_paused():
            self._before = [(type(obj), _mark_without_reading(obj, mappings) or _mark(obj), _attributes(obj)) for obj in objects]
            self._leave_out_attributes()

    def _leave_out_attributes(self) -> None:
        """Track a dict that ``__setstate__`` made an object's ``__dict__`` only as that object's attributes.

        The dict may hold what cannot be pickled (weak references), for which the object's own reduce value accounts.
        """
        own = {id(vars(obj)) for obj, (_, _, attributes) in zip(self.objects, self._before, strict=True) if attributes and _has_dict(obj)}
        for index, obj in enumerate(self.objects):
            if type(obj) is dict and id(obj) in own:
                self._before[index] = dict, _AS_ATTRIBUTES, None

    def changed(self) -> dict[int, Contents]:
        """Return the new contents of all objects that have changed, by index."""
        result: dict[int, Contents] = {}
        for index, (obj, before) in enumerate(zip(self.objects, self._before, strict=True)):
            found = _new_contents(obj, *before)
            if found is not None:
                result[index] = found
        return result

    def changed_holders(self) -> list[object]:
        """Return the objects with new items or attributes, except tensors and arrays of numbers. Reads no numbers."""
        pairs = zip(self.objects, self._before, strict=True)
        return [obj for obj, before in pairs if not _holds_numbers(obj) and _new_contents(obj, *before) is not None]


def _holds_numbers(obj: object) -> bool:
    return isinstance(obj, torch.Tensor) or (isinstance(obj, np.ndarray) and not obj.dtype.hasobject)


def _new_contents(obj: object, kind: type, mark: object, attributes: dict[str, Any] | None) -> Contents | None:
    items = items_of(obj) if _differs(obj, mark) else None
    now = _attributes(obj)
    new: dict[str, Any] = {}
    removed: list[str] = []
    if (
        now is not None
        and attributes is not None
        and not (now.keys() == attributes.keys() and all(now[key] is attributes[key] for key in now))
    ):
        new = {key: value for key, value in now.items() if attributes.get(key, ABSENT) is not value}
        removed = [key for key in attributes if key not in now]
        if new.get(GRAPH) is not None:
            new[GRAPH] = grad_fn_name(obj)  # type: ignore[arg-type]  # a tensor: the graph stays here, and only its name is sent
    if type(obj) is not kind:  # a lazy module becomes a plain one
        new["__class__"] = type(obj)
    return Contents(items, new, removed) if items is not None or new or removed else None


def _attributes(obj: object) -> dict[str, Any] | None:
    found = attributes_of(obj)
    if not isinstance(obj, torch.Tensor):
        return found
    # A lazy parameter is a leaf: were its graph left out, one that the cell initializes would count as a leaf that it has made.
    return {**(found or {}), GRAPH: None if is_lazy(obj) else grad_fn_of(obj)}


# -- marks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Untouched:
    """The mark of a large tensor or array whose memory nobody has written to since it was mapped."""

    place: tuple[object, ...]
    address: int
    num_bytes: int


def _mark_without_reading(obj: object, mappings: PrivateMappings) -> _Untouched | None:
    """Return the mark of large mapped data without reading it, as that could take longer than the cell; ``None`` for all else."""
    if isinstance(obj, torch.Tensor):
        if obj.requires_grad or not Numbers.can_hold(obj) or obj.device.type != "cpu" or not obj.is_contiguous():
            return None
        address, num_bytes = obj.data_ptr(), obj.nbytes
    elif isinstance(obj, np.ndarray):
        if obj.dtype.hasobject or not (obj.flags.c_contiguous or obj.flags.f_contiguous):
            return None
        address, num_bytes = obj.ctypes.data, obj.nbytes
    else:
        return None
    if num_bytes < LARGE or not mappings.untouched(address, num_bytes):
        return None
    return _Untouched(_place_of(obj), address, num_bytes)


def _place_of(obj: torch.Tensor | np.ndarray[Any, Any]) -> tuple[object, ...]:
    return _storage_signature(obj) if isinstance(obj, torch.Tensor) else (obj.ctypes.data, obj.shape, obj.strides, obj.dtype)


def _mark(obj: Any) -> Any:
    """Return what to compare with later: a list whose items must be identical, or a value that must be equal."""
    kind = type(obj)
    if kind is list:
        return obj.copy()
    if kind is tuple or kind is frozenset:
        return None
    if kind is dict:
        return [*obj, *obj.values()]
    if isinstance(obj, torch.Tensor):
        return _tensor_mark(obj)
    if isinstance(obj, np.ndarray):
        return _array_mark(obj)
    if is_frame(obj):
        # In-place changes show in the arrays, which are tracked as objects of their own.
        return [*obj._mgr.arrays, *obj._mgr.axes, *marks_of_frame(obj)]
    if is_notebooks(obj):
        return mark_of(obj)
    if is_iterator(obj):
        return place_of(obj)
    items = items_of(obj)
    return items if items is None or isinstance(items, list | bytes) else pickle.dumps(items)


def _has_dict(obj: object) -> bool:
    return type(getattr(obj, "__dict__", None)) is dict


_AS_ATTRIBUTES = object()


def _differs(obj: Any, before: Any) -> bool:
    if before is _AS_ATTRIBUTES:
        return False
    if isinstance(before, _Untouched):
        if isinstance(obj, torch.Tensor) and obj.requires_grad:
            return True
        return _place_of(obj) != before.place or not untouched(before.address, before.num_bytes)
    if isinstance(obj, torch.Tensor):
        return _tensor_differs(obj, before)
    now = _mark(obj)
    if isinstance(now, list):
        return len(now) != len(before) or not all(map(is_, now, before))
    return bool(now != before)


def _array_mark(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.hasobject:
        return [*array.flat]
    data = np.ascontiguousarray(array.T if array.flags.f_contiguous else array)
    return (array.shape, array.dtype, zlib.crc32(data.reshape(-1).view(np.uint8).data) if data.nbytes else 0)


@dataclass(frozen=True)
class _TensorMark:
    place: tuple[object, ...]
    checksum: int


def _tensor_mark(tensor: torch.Tensor) -> _TensorMark | None:
    """Return a mark that tells whether a tensor has changed; ``None`` for tensors that always count as changed.

    The version counter is not enough: writes through ``.data`` and by batch normalization do not increase it.
    """
    if tensor.requires_grad or is_lazy(tensor):
        return None
    try:
        return _TensorMark(_storage_signature(tensor), _checksum(tensor))
    except (RuntimeError, NotImplementedError, TypeError):  # not strided: sparse, or a subclass of another library
        return None


def _tensor_differs(tensor: torch.Tensor, before: _TensorMark | None) -> bool:
    if is_lazy(tensor) or tensor.is_meta:  # there are no numbers
        return False
    if before is None or tensor.requires_grad or _storage_signature(tensor) != before.place:
        return True
    return _checksum(tensor) != before.checksum


def _storage_signature(tensor: torch.Tensor) -> tuple[object, ...]:
    version = None if tensor.is_inference() else tensor._version  # inference tensors have no version counter
    return (version, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(as_array(bytes_of(once(tensor.detach()).resolve_conj().resolve_neg().cpu())).data)

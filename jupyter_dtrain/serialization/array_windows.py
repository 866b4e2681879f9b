"""Arrays and tensors that look into the same memory: they do so on the other side too, where what is written to one is seen in the others.

Each array and each storage is written by itself, as pickle does, unless another one that goes along overlaps it: then the memory that they
share is written once, and each of them as a window into it. That is known only when all have been seen, so such values are pickled a second
time. What overlaps an array or a tensor that the reader has is a window into that one (:mod:`.known_memory`).
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

Array = np.ndarray[Any, Any]
PANDAS_BLOCKS = "pandas.core.internals.blocks"
_ALIGNED = 64  # bytes: offsets within memory that begins at a multiple of it leave numbers where they may be
_TIMES = 3  # that values are pickled again: what classes make anew each time, as they reduce themselves, may share other memory each time
_SPREAD = 2  # times its own bytes that an array with gaps may span to be sent with them: only then is `reshape` of it what it was


_AS_STRIDED = type(np.lib.stride_tricks.as_strided(np.empty(1)).base)
"""What stands between an array and whose memory NumPy was told that it is."""


@dataclass
class Region:
    """Memory that several arrays and storages look into.

    Attributes
    ----------
    begin, end : int
        Addresses of its first byte, and of the one behind its last.
    members : tuple of object
        What looks into it: they keep it alive.
    storage : torch.UntypedStorage, optional
        The one that is all of it, so that arrays are windows into that.
    """

    begin: int
    end: int
    members: tuple[object, ...]
    storage: torch.UntypedStorage | None = None

    def memory(self) -> Array:
        """Return its bytes."""
        return memory_at(self.begin, self.end, self.members)


class Windows:
    """Arrays and storages that have been seen, and the memory that several of them share."""

    def __init__(self) -> None:
        self._arrays: dict[int, Array] = {}  # by their ids
        self._storages: dict[int, torch.UntypedStorage] = {}  # by their addresses
        self._regions: list[Region] = []  # in the order of their first bytes; none overlaps another
        self._alone: dict[int, Any] = {}  # arrays that are not to be seen, by their ids
        self._times_grown = 0

    def leave(self, values: object) -> None:
        """Let an array be written by itself.

        So is what a block of pandas has (pandas copies before it writes, by what it knows of its own arrays), and new numbers of an
        array that the reader has.
        """
        array = getattr(values, "_ndarray", values)
        if isinstance(array, np.ndarray):
            self._alone[id(array)] = array

    def has_left(self, array: Array) -> bool:
        """Return whether an array is to be written by itself."""
        return id(array) in self._alone or not has_plain_memory(array)

    def region_of(self, array: Array) -> Region | None:
        """Return the memory that `array` is a window into; ``None``: it is written by itself."""
        if self.has_left(array):
            return None
        self._arrays[id(array)] = array
        begin, end = bounds(array)
        if (region := self._containing(begin, end)) is not None:
            return region
        gaps = not (array.flags.c_contiguous or array.flags.f_contiguous)
        return Region(begin, end, (array,)) if gaps and end - begin <= _SPREAD * array.nbytes else None

    def region_of_storage(self, storage: torch.UntypedStorage) -> Region | None:
        """Return the memory that `storage` is a window into; ``None``: it is written by itself."""
        if not is_private(storage):
            return None
        self._storages[storage._cdata] = storage
        region = self._containing(*storage_bounds(storage))
        return None if region is None or (region.storage is not None and region.storage._cdata == storage._cdata) else region

    def grow(self) -> bool:
        """Take in what has been seen to share memory; return whether that is more than was known."""
        spans: list[tuple[int, int, Any]] = [(*bounds(array), array) for array in self._arrays.values()]
        spans += [(*storage_bounds(storage), storage) for storage in self._storages.values()]
        groups = list(_overlapping(spans)) if self._arrays or len(self._storages) > 1 else []
        if all(self._containing(begin, end) is not None for begin, end, _ in groups):
            return False
        self._regions = [_region(begin, end, tuple(members)) for begin, end, members in groups]
        self._times_grown += 1
        return self._times_grown <= _TIMES

    def _containing(self, begin: int, end: int) -> Region | None:
        number = bisect_right(self._regions, begin, key=lambda region: region.begin)
        region = self._regions[number - 1] if number else None
        return region if region is not None and end <= region.end else None


def _overlapping(spans: list[tuple[int, int, Any]]) -> Iterable[tuple[int, int, list[Any]]]:
    """Return the first byte, the one behind the last, and the members of each group of several that overlap."""
    group: list[Any] = []
    begin = end = 0
    for first, behind, obj in sorted(spans, key=lambda span: span[:2]):
        if group and first < end:
            group.append(obj)
            end = max(end, behind)
            continue
        if len(group) > 1:
            yield begin, end, group
        group, begin, end = [obj], first, behind
    if len(group) > 1:
        yield begin, end, group


def storages_in_windows(objects: Iterable[object]) -> frozenset[int]:
    """Return the addresses of the storages of tensors among `objects` into whose memory arrays, or other storages, look as well."""
    storages: dict[int, torch.UntypedStorage] = {}
    spans: list[tuple[int, int, Any]] = []
    for obj in objects:
        if isinstance(obj, np.ndarray):
            if has_plain_memory(obj):
                spans.append((*bounds(obj), obj))
        elif isinstance(obj, torch.Tensor) and not is_lazy(obj) and obj.layout == torch.strided and obj.device.type == "cpu":
            storage = obj.untyped_storage()
            if storage.nbytes():
                storages.setdefault(storage._cdata, storage)
    spans += [(*storage_bounds(storage), storage) for storage in storages.values()]
    members = [member for _, _, group in _overlapping(spans) for member in group]
    return frozenset(member._cdata for member in members if isinstance(member, torch.UntypedStorage))


def _region(begin: int, end: int, members: tuple[Any, ...]) -> Region:
    storages = [obj for obj in members if isinstance(obj, torch.UntypedStorage)]
    if len(storages) == 1 and storage_bounds(storages[0]) == (begin, end):
        return Region(begin, end, members, storages[0])
    first = min((obj for obj in members if not isinstance(obj, torch.UntypedStorage)), key=lambda array: bounds(array)[0], default=None)
    if first is not None and bounds(first)[0] == begin:
        start = bounds(_root(first))[0]
        begin = start + (begin - start) // _ALIGNED * _ALIGNED
    return Region(begin, end, members)


def _root(array: Array) -> Array:
    """Return the array whose memory `array` looks into, perhaps itself."""
    root: Any = array
    while True:
        base = getattr(root.base, "base", None) if isinstance(root.base, _AS_STRIDED) else root.base
        if type(base) is not np.ndarray:
            break
        root = base
    found: Array = root
    return found


def has_plain_memory(array: Array) -> bool:
    """Return whether an array is bytes in memory that is no file's."""
    base = _root(array).base
    return bool(array.nbytes) and not array.dtype.hasobject and not isinstance(base, np.memmap | mmap.mmap)


def bounds(array: Array) -> tuple[int, int]:
    """Return the addresses of the first byte of an array, and of the one behind its last."""
    begin = end = address(array)
    for size, stride in zip(array.shape, array.strides, strict=True):
        begin += min(0, (size - 1) * stride)
        end += max(0, (size - 1) * stride)
    return begin, end + array.itemsize


def is_private(storage: torch.UntypedStorage) -> bool:
    """Return whether a storage is bytes in this process's memory: no device's, and none that processes share."""
    return storage.device.type == "cpu" and storage.nbytes() > 0 and not storage.is_shared()


def storage_bounds(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Return the addresses of the first byte of a storage, and of the one behind its last."""
    begin = storage.data_ptr()
    return begin, begin + storage.nbytes()


def address(array: Array) -> int:
    """Return where the first element of an array is."""
    return int(array.__array_interface__["data"][0])


class _Memory:
    """Bytes at an address, which `owners` keep alive."""

    def __init__(self, begin: int, end: int, owners: tuple[object, ...]) -> None:
        self.__array_interface__ = {"data": (begin, False), "shape": (end - begin,), "typestr": "|u1", "version": 3}
        self.owners = owners


def memory_at(begin: int, end: int, owners: tuple[object, ...]) -> Array:
    """Return the bytes between two addresses, of memory that `owners` keep alive."""
    return np.asarray(_Memory(begin, end, owners))


def window(
    memory: Array | torch.UntypedStorage,
    dtype: np.dtype[Any] | str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    *,
    writeable: bool,
) -> Array:
    """Return the array that looks into `memory`, bytes, as another one did elsewhere."""
    made = np.ndarray(shape, np.dtype(dtype), _bytes(memory), offset, strides)
    made.flags.writeable = writeable
    return made


def storage_window(memory: Array | torch.UntypedStorage, offset: int, num_bytes: int) -> torch.UntypedStorage:
    """Return the storage that looks into `memory`, bytes, as another one did elsewhere."""
    return torch.frombuffer(_bytes(memory), dtype=torch.uint8, offset=offset, count=num_bytes).untyped_storage()


def _bytes(memory: Array | torch.UntypedStorage) -> Array:
    return memory if isinstance(memory, np.ndarray) else torch.empty(0, dtype=torch.uint8).set_(memory).numpy()

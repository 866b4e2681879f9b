"""Arrays and tensors that share memory: they share it after unpickling as well, so that writes to one show in the others.

Each array and storage is written by itself, unless it overlaps another one of the same graph. Overlapping ones are written as one region
of memory, and each as a window into it. Overlaps are known only after all objects have been seen, so such graphs are pickled a second
time. What overlaps an array or tensor that the reader already has is a window into that one (:mod:`.known_memory`).
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
_ALIGNED = 64  # bytes; keeps the alignment of numbers within a region
_TIMES = 3  # most repetitions: classes that build new arrays when they are reduced may share other memory each time
_SPREAD = 2  # times its own bytes that an array with gaps may span to be sent with them, so that `reshape` behaves as before


_AS_STRIDED = type(np.lib.stride_tricks.as_strided(np.empty(1)).base)
"""Type of the object that NumPy puts between a strided view and its base array."""


@dataclass
class Region:
    """Memory that several arrays and storages share.

    Attributes
    ----------
    begin, end : int
        Addresses of the first byte, and of the byte after the last.
    members : tuple of object
        The arrays and storages in it. They keep it alive.
    storage : torch.UntypedStorage, optional
        The storage that spans the whole region, if there is one.
    """

    begin: int
    end: int
    members: tuple[object, ...]
    storage: torch.UntypedStorage | None = None

    def memory(self) -> Array:
        """Return the bytes of the region."""
        return memory_at(self.begin, self.end, self.members)


class Windows:
    """Arrays and storages that were seen, and the regions that several of them share."""

    def __init__(self) -> None:
        self._arrays: dict[int, Array] = {}  # by id
        self._storages: dict[int, torch.UntypedStorage] = {}  # by address
        self._regions: list[Region] = []  # sorted by first byte, without overlaps
        self._alone: dict[int, Any] = {}  # arrays that are written by themselves, by id
        self._times_grown = 0

    def leave(self, values: object) -> None:
        """Let an array be written by itself, for example new contents of an array that the reader has."""
        if isinstance(values, np.ndarray):
            self._alone[id(values)] = values

    def has_left(self, array: Array) -> bool:
        """Return whether an array is written by itself."""
        return id(array) in self._alone or not has_plain_memory(array)

    def region_of(self, array: Array) -> Region | None:
        """Return the region that `array` is a window into, its own if it has gaps or is read-only; ``None``: it is written as an array."""
        if self.has_left(array):
            return None
        self._arrays[id(array)] = array
        begin, end = bounds(array)
        if (region := self._containing(begin, end)) is not None:
            return region
        plain = array.flags.writeable and (array.flags.c_contiguous or array.flags.f_contiguous)
        return None if plain or end - begin > _SPREAD * array.nbytes else Region(begin, end, (array,))

    def region_of_storage(self, storage: torch.UntypedStorage) -> Region | None:
        """Return the region that `storage` is a window into; ``None`` if the storage is written by itself."""
        if not is_private(storage):
            return None
        self._storages[storage._cdata] = storage
        region = self._containing(*storage_bounds(storage))
        return None if region is None or (region.storage is not None and region.storage._cdata == storage._cdata) else region

    def grow(self) -> bool:
        """Form regions from all that was seen; return whether there are more than before, so that pickling again is worth it."""
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
    """Yield first byte, byte after the last, and members of each group of overlapping spans."""
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
    """Return the addresses of storages of tensors among `objects` that share memory with arrays or other storages."""
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
    """Return the array that owns the memory of `array`, perhaps itself."""
    root: Any = array
    while True:
        base = getattr(root.base, "base", None) if isinstance(root.base, _AS_STRIDED) else root.base
        if type(base) is not np.ndarray:
            break
        root = base
    found: Array = root
    return found


def has_plain_memory(array: Array) -> bool:
    """Return whether an array consists of plain bytes in memory that is not mapped from a file."""
    base = _root(array).base
    return bool(array.nbytes) and not array.dtype.hasobject and not isinstance(base, np.memmap | mmap.mmap)


def bounds(array: Array) -> tuple[int, int]:
    """Return the addresses of an array's first byte, and of the byte after its last."""
    begin = end = address(array)
    for size, stride in zip(array.shape, array.strides, strict=True):
        begin += min(0, (size - 1) * stride)
        end += max(0, (size - 1) * stride)
    return begin, end + array.itemsize


def is_private(storage: torch.UntypedStorage) -> bool:
    """Return whether a storage lies in CPU memory that no other process shares."""
    return storage.device.type == "cpu" and storage.nbytes() > 0 and not storage.is_shared()


def storage_bounds(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Return the addresses of a storage's first byte, and of the byte after its last."""
    begin = storage.data_ptr()
    return begin, begin + storage.nbytes()


def address(array: Array) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])


class _Memory:
    """Bytes at an address, kept alive by `owners`."""

    def __init__(self, begin: int, end: int, owners: tuple[object, ...]) -> None:
        self.__array_interface__ = {"data": (begin, False), "shape": (end - begin,), "typestr": "|u1", "version": 3}
        self.owners = owners


def memory_at(begin: int, end: int, owners: tuple[object, ...]) -> Array:
    """Return the bytes between two addresses as an array; `owners` keep the memory alive."""
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
    """Return an array with this layout in the bytes of `memory`."""
    made = np.ndarray(shape, np.dtype(dtype), _bytes(memory), offset, strides)
    made.flags.writeable = writeable
    return made


def storage_window(memory: Array | torch.UntypedStorage, offset: int, num_bytes: int) -> torch.UntypedStorage:
    """Return a storage of `num_bytes` bytes at `offset` in `memory`."""
    return torch.frombuffer(_bytes(memory), dtype=torch.uint8, offset=offset, count=num_bytes).untyped_storage()


def _bytes(memory: Array | torch.UntypedStorage) -> Array:
    return memory if isinstance(memory, np.ndarray) else torch.empty(0, dtype=torch.uint8, device="cpu").set_(memory).numpy()

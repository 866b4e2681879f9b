"""NumPy arrays that look into the same memory: they do so on an engine too, where what is written to one is seen in the others.

Each array is written by itself, as pickle does, unless another one that goes along overlaps it: then what they share is written once, and
each of them as a window into it. That is known only when all have been seen, so such values are pickled a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
PANDAS_BLOCKS = "pandas.core.internals.blocks"
_ALIGNED = 64  # bytes: offsets within memory that begins at a multiple of it leave numbers where they may be


_AS_STRIDED = type(np.lib.stride_tricks.as_strided(np.empty(1)).base)
"""What stands between an array and whose memory NumPy was told that it is."""


@dataclass
class _Owner:
    """The array whose memory others look into, with the bytes of it that are needed."""

    array: Array
    begin: int
    end: int

    def memory(self) -> Array:
        """Return these bytes."""
        whole = self.array.ravel(order="K").view(np.uint8)
        start = address(self.array)
        return whole[self.begin - start : self.end - start]


class Windows:
    """Arrays that have been seen, and the memory that several of them share."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[int, Array]] = {}  # by their ids, by the ids of those whose memory it is
        self._owners: dict[int, _Owner] = {}
        self._alone: dict[int, Any] = {}  # arrays that are not to be seen, by their ids

    def leave(self, values: object) -> None:
        """Let what a block of pandas has be written by itself: pandas copies before it writes, by what it knows of its own arrays."""
        array = getattr(values, "_ndarray", values)
        if isinstance(array, np.ndarray):
            self._alone[id(array)] = array

    def owner_of(self, array: Array) -> _Owner | None:
        """Return whose memory `array` is a window into; ``None``: it is written by itself."""
        if id(array) in self._alone:
            return None
        root = _root(array)
        if root is None:
            return None
        self._seen.setdefault(id(root), {})[id(array)] = array
        owner = self._owners.get(id(root))
        begin, end = bounds(array)
        return owner if owner is not None and owner.begin <= begin and end <= owner.end else None

    def grow(self) -> bool:
        """Take in what arrays have been seen to share; return whether that is more than was known."""
        grown = False
        for key, arrays in self._seen.items():
            spans = sorted(map(bounds, arrays.values()))
            if len(spans) > 1 and any(after[0] < before[1] for before, after in pairwise(spans)):
                root = _root(next(iter(arrays.values())))
                assert root is not None
                start = address(root)
                begin = start + (spans[0][0] - start) // _ALIGNED * _ALIGNED
                end = max(end for _, end in spans)
                known = self._owners.get(key)
                if known is None or begin < known.begin or end > known.end:
                    self._owners[key] = _Owner(root, begin, end)
                    grown = True
        return grown


def _root(array: Array) -> Array | None:
    """Return the array whose memory `array` looks into, perhaps itself; ``None`` where it is no array's own, or not in one piece."""
    root: Any = array
    while (base := getattr(root.base, "base", None) if isinstance(root.base, _AS_STRIDED) else root.base) is not None:
        if type(base) is not np.ndarray:
            return None
        root = base
    in_one_piece = root.flags.c_contiguous or root.flags.f_contiguous
    return root if root.nbytes and in_one_piece and not root.dtype.hasobject else None


def address(array: Array) -> int:
    """Return where the memory of an array begins."""
    return int(array.__array_interface__["data"][0])


def bounds(array: Array) -> tuple[int, int]:
    """Return the first byte of an array, and the one behind its last."""
    begin = end = address(array)
    for size, stride in zip(array.shape, array.strides, strict=True):
        begin += min(0, (size - 1) * stride)
        end += max(0, (size - 1) * stride)
    return begin, end + array.itemsize


def window(memory: Array, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, *, writeable: bool) -> Array:
    """Return the array that looks into `memory`, bytes, as another one did elsewhere."""
    made = np.ndarray(shape, np.dtype(dtype), memory, offset, strides)
    made.flags.writeable = writeable
    return made

"""Memory of arrays and tensors that the reader has: what shares it is written as a window, without bytes."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .array_windows import Array, address, bounds, has_plain_memory, is_private, memory_at, storage_bounds, window

Layout = tuple[str, tuple[int, ...], tuple[int, ...]]
Place = tuple[Any, tuple[int, ...], tuple[int, ...], int, bool]


_AT_HOME: dict[int, tuple[weakref.ref[Array], tuple[int, ...]]] = {}
"""Original strides of arrays that had gaps in the process they came from and are contiguous here, by id."""


def came_without_gaps(array: Array, strides: tuple[int, ...]) -> None:
    """Record the strides that `array` had in the process it came from."""
    key = id(array)
    _AT_HOME[key] = weakref.ref(array, lambda _: _AT_HOME.pop(key, None)), strides


@dataclass(frozen=True, order=True)
class _Span:
    begin: int
    end: int
    index: int
    is_array: bool


class KnownMemory:
    """The memory of objects that the reader has.

    Parameters
    ----------
    known : sequence of object
        In the reader's order.
    storages : mapping of int to int
        Address of a storage that the reader has → index of a tensor in `known` with this storage.
    """

    def __init__(self, known: Sequence[object], storages: Mapping[int, int]) -> None:
        self._known = known
        self._storages = storages
        self._found: tuple[list[_Span], list[_Span]] | None = None

    def array(self, array: Array) -> tuple[str, Any] | None:
        """Return a reference to the object in whose memory `array` is a window, if any."""
        begin, end = bounds(array)
        span = self._containing(begin, end)
        return None if span is None else self._reference(span, place_of(array, span.begin))

    def storage(self, storage: torch.UntypedStorage) -> tuple[str, Any] | None:
        """Return a reference to the array in whose memory `storage` is a window, if any."""
        if not is_private(storage):
            return None
        begin, end = storage_bounds(storage)
        span = self._containing(begin, end)
        if span is None or not span.is_array:
            return None
        found = self._reference(span, ("|u1", (storage.nbytes(),), (1,), begin - span.begin, True))
        return None if found is None else ("known array's storage", found[1])

    def _reference(self, span: _Span, place: Place) -> tuple[str, Any] | None:
        if not span.is_array:
            return "known storage's window", (span.index, *place)
        array: Any = self._known[span.index]
        at_home = _AT_HOME.get(id(array))
        if at_home is not None and _strided_as(at_home[1], _layout(array), *place[1:4]) is None:
            return None  # the reader's array has gaps, so that this view does not exist there
        return "known array's window", (span.index, _layout(array), *place)

    def _containing(self, begin: int, end: int) -> _Span | None:
        spans, furthest = self._spans()
        number = bisect_right(spans, begin, key=lambda span: span.begin)
        found = furthest[number - 1] if number else None
        return found if found is not None and end <= found.end else None

    def _spans(self) -> tuple[list[_Span], list[_Span]]:
        """Return the spans sorted by first byte, and for each the span up to it that reaches furthest."""
        if self._found is None:
            spans = [
                _Span(*bounds(obj), index, is_array=True)
                for index, obj in enumerate(self._known)
                if type(obj) is np.ndarray and has_plain_memory(obj)
            ]
            for index in self._storages.values():
                tensor: Any = self._known[index]
                storage = tensor.untyped_storage()
                if is_private(storage):
                    spans.append(_Span(*storage_bounds(storage), index, is_array=False))
            spans.sort()
            furthest: list[_Span] = []
            for span in spans:
                furthest.append(span if not furthest or span.end > furthest[-1].end else furthest[-1])
            self._found = spans, furthest
        return self._found


def place_of(array: Array, begin: int) -> Place:
    """Return dtype, shape, strides, offset from address `begin` in bytes, and writeability of an array."""
    dtype = array.dtype if array.dtype.names else array.dtype.str
    return dtype, array.shape, array.strides, address(array) - begin, array.flags.writeable


def _layout(array: Array) -> Layout:
    return array.dtype.str, array.shape, array.strides


# -- at the reader -----------------------------------------------------------------------------------------------------


def known_arrays_window(array: Array, layout: Layout, place: Place) -> Array:
    """Return the view of `array` that corresponds to one of the writer's array, which had `layout`.

    Raises
    ------
    ValueError
        `array` has another memory layout here, in which the same elements are no view.
    """
    dtype, shape, strides, offset, writeable = place
    begin, end = bounds(array)
    if _layout(array) != layout:
        found = _strided_as(array.strides, layout, shape, strides, offset) if _layout(array)[:2] == layout[:2] else None
        if found is None:
            raise ValueError("it is a view of an array of the notebook, which has another memory layout there: return a copy (`.copy()`)")
        offset, strides = found[0] + address(array) - begin, found[1]
    return window(memory_at(begin, end, (array,)), dtype, shape, strides, offset, writeable=writeable and array.flags.writeable)


def known_arrays_storage(array: Array, layout: Layout, place: Place) -> torch.UntypedStorage:
    """Return the storage of a tensor that is a window into `array`, as it was at the writer."""
    return torch.frombuffer(known_arrays_window(array, layout, place), dtype=torch.uint8).untyped_storage()


def _strided_as(
    here: tuple[int, ...], layout: Layout, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> tuple[int, tuple[int, ...]] | None:
    """Return offset from the first element, and strides, in bytes, of a view of an array with strides `here`.

    The view has the same elements as one with `shape`, `strides`, `offset` of an array with `layout`; ``None`` if there is no such view.
    """
    dtype, sizes, there = layout
    if min(there, default=1) < 0:
        return None
    order = sorted(range(len(sizes)), key=lambda dim: -there[dim])

    def steps(distance: int) -> tuple[list[int], int]:
        counts = [0] * len(sizes)
        for dim in order:
            if there[dim] and sizes[dim] > 1:
                counts[dim], distance = divmod(distance, there[dim])
        return counts, distance

    first, rest = steps(offset)
    low, high, new = list(first), list(first), []
    inside = rest
    for size, stride in zip(shape, strides, strict=True):
        sign = -1 if stride < 0 else 1
        counts, part = steps(abs(stride))
        inside += part * (size - 1)
        for dim, count in enumerate(counts):
            reached = sign * count * (size - 1)
            low[dim], high[dim] = low[dim] + min(0, reached), high[dim] + max(0, reached)
        new.append(sign * (sum(count * to for count, to in zip(counts, here, strict=True)) + part))
    if inside >= np.dtype(dtype).itemsize or min(low, default=0) < 0 or any(most >= size for most, size in zip(high, sizes, strict=True)):
        return None
    return sum(count * to for count, to in zip(first, here, strict=True)) + rest, tuple(new)

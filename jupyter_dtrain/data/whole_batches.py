"""Return batches that are already collated: ``default_collate`` takes them as they are, other collate functions see samples.

`default_collate_fn_map` is PyTorch's registry of sample types and their collate functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map


class _Pair(tuple[Any, ...]):
    """A sample with its target, from a collated batch."""

    __slots__ = ()


class _Record(dict[str, Any]):
    """A sample of several columns, from a collated batch."""


class _Row(torch.Tensor):
    """A sample that is one tensor. Operations on it return ordinary tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as that of `nn.Parameter`


class RowBatch(Sequence[Any]):
    """The samples of a collated batch.

    Parameters
    ----------
    x : tensor, shape (B, …), list of B, or dict of these
    y : the same
        Targets; omitted if there are none.
    """

    __slots__ = ("_length", "_parts")

    def __init__(self, length: int, x: Any, *y: Any) -> None:
        self._length, self._parts = length, (x, *y)

    def collated(self) -> Any:
        """Return what ``default_collate`` would make of the samples."""
        # That function makes a list of strings within a dict, and a tuple of strings beside another part.
        return self._parts[0] if len(self._parts) == 1 else [tuple(part) if isinstance(part, list) else part for part in self._parts]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._sample(number) for number in range(*index.indices(self._length))]
        number = range(self._length)[index]
        sample = self._sample(number)
        if isinstance(sample, tuple):
            return _Pair(sample)
        return _Record(sample) if isinstance(sample, dict) else sample.as_subclass(_Row) if isinstance(sample, torch.Tensor) else sample

    def __iter__(self) -> Iterator[Any]:
        return map(self._sample, range(self._length))

    def _sample(self, number: int) -> Any:
        parts = tuple(row_of(part, number) for part in self._parts)
        return parts[0] if len(parts) == 1 else parts


def row_of(part: Any, number: int) -> Any:
    """Return one sample's part of a batch."""
    return {name: value[number] for name, value in part.items()} if isinstance(part, dict) else part[number]


def _collate(batch: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001  # PyTorch's signature
    if isinstance(batch, RowBatch):
        return batch.collated()
    plain: dict[type, Callable[[Any], Any]] = {_Pair: tuple, _Record: dict, _Row: lambda sample: sample.as_subclass(torch.Tensor)}
    return default_collate([plain[type(sample)](sample) if type(sample) in plain else sample for sample in batch])


default_collate_fn_map.update(dict.fromkeys((_Pair, _Record, _Row), _collate))

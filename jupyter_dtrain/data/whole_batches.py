"""Batches that come whole: PyTorch's ``default_collate`` takes them as they are, any other function sees samples.

`default_collate_fn_map` is PyTorch's own place for types of samples and how batches are made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map


class _Pair(tuple[Any, ...]):
    """A sample and its target out of a batch that is whole."""

    __slots__ = ()


class _Record(dict[str, Any]):
    """A sample of several columns."""


class _Row(torch.Tensor):
    """A sample that is one tensor. What is computed from it is an ordinary tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as that of `nn.Parameter`


class RowBatch(Sequence[Any]):
    """The samples of a batch.

    Parameters
    ----------
    x : tensor, shape (B, …), list of B, or dict of such
    y : the same
        Targets; left out where there are none.
    """

    __slots__ = ("_length", "_parts")

    def __init__(self, length: int, x: Any, *y: Any) -> None:
        self._length, self._parts = length, (x, *y)

    def collated(self) -> Any:
        """Return what ``default_collate`` makes of the samples."""
        # Texts are a list within a dict, and a tuple beside something else, as that function has them.
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
    """Return one sample's part of what a batch holds."""
    return {name: value[number] for name, value in part.items()} if isinstance(part, dict) else part[number]


def _collate(batch: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001  # PyTorch's signature
    if isinstance(batch, RowBatch):
        return batch.collated()
    plain: dict[type, Callable[[Any], Any]] = {_Pair: tuple, _Record: dict, _Row: lambda sample: sample.as_subclass(torch.Tensor)}
    return default_collate([plain[type(sample)](sample) if type(sample) in plain else sample for sample in batch])


default_collate_fn_map.update(dict.fromkeys((_Pair, _Record, _Row), _collate))

"""Fetch rows of tensors in one operation: fetching and stacking them one by one is a large part of a small model's step.

A batch of a `TensorDataset` (or a `Subset` of one) with PyTorch's own collate function consists of rows of its tensors. Values and memory
layout are the same either way. Unusual cases (an index that is not an int, a tensor with a graph) use PyTorch's own way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from .own_iterators import iterates_itself

# Copies of data loaders with some attributes changed; the user's loaders stay unchanged.


def copy_of(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Return a copy of `loader` with `changes` to its attributes and without an iterator."""
    made = copy.copy(loader)
    # DataLoader forbids setting some attributes after construction; the copy has no iterator yet, so setting them is safe.
    made.__dict__.update(changes, _iterator=None)
    return made


Make = Callable[[DataLoader[Any]], Any]


def has_rows(loader: DataLoader[Any]) -> bool:
    """Return whether the batches of `loader` are rows of tensors."""
    dataset: Any = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset and loader.collate_fn is default_collate


def taking_rows(make: Make) -> Make:
    """Return `make`, a loader's own ``__iter__``, changed to fetch rows of tensors in one operation if this process loads them."""

    def made(loader: DataLoader[Any]) -> Any:
        if loader.num_workers or loader.batch_sampler is None or not has_rows(loader) or iterates_itself(loader):
            return make(loader)
        return make(copy_of(loader, dataset=_Rows(loader.dataset), collate_fn=_Batch.collate))

    return made


class _Batch(list[torch.Tensor]):
    """A batch that was fetched in one operation."""

    @staticmethod
    def collate(samples: Any) -> Any:
        return list(samples) if type(samples) is _Batch else default_collate(samples)


class _Rows:
    """The dataset of such a loader, for fetching whole batches."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        dataset, rows = self._dataset, indices
        while type(dataset) is Subset:
            rows, dataset = [dataset.indices[index] for index in rows], dataset.dataset
        if set(map(type, rows)) == {int} and all(map(_is_plain, dataset.tensors)):
            where = torch.tensor(rows, device="cpu")
            try:
                return _Batch(tensor.index_select(0, where.to(tensor.device)) for tensor in dataset.tensors)
            except (IndexError, RuntimeError):  # a negative index, or an error that PyTorch's own way raises
                pass
        return [self._dataset[index] for index in indices]

    def __len__(self) -> int:
        return len(self._dataset)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.is_contiguous()
    )

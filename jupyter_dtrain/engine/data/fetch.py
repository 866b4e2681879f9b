"""Rows of tensors, taken all at once: to take them one by one and stack them is a large part of a small model's step.

A `TensorDataset` (or a `Subset` of one) whose samples PyTorch's own function puts together gives, as a batch, rows of its tensors. They
are the same numbers, in memory laid out alike, however they are taken. What is out of the ordinary (an index that is no number, a
tensor with a graph) goes PyTorch's own way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from .own_iterators import iterates_itself

# Copies of data loaders, in which something is another's: the user's own stay what they are.


def copy_of(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Return a copy of `loader`, with these attributes changed and no iterator of its own yet."""
    made = copy.copy(loader)
    # DataLoader forbids to set some of them after it was made; the copy has made nothing yet.
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
    """Return `make`, a loader's own ``__iter__``, so that what are rows of tensors is taken at once in this process."""

    def made(loader: DataLoader[Any]) -> Any:
        if loader.num_workers or loader.batch_sampler is None or not has_rows(loader) or iterates_itself(loader):
            return make(loader)
        return make(copy_of(loader, dataset=_Rows(loader.dataset), collate_fn=_Batch.collate))

    return made


class _Batch(list[torch.Tensor]):
    """A batch that was taken at once."""

    @staticmethod
    def collate(samples: Any) -> Any:
        return list(samples) if type(samples) is _Batch else default_collate(samples)


class _Rows:
    """The data set of such a loader, for who asks it for batches."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        dataset, rows = self._dataset, indices
        while type(dataset) is Subset:
            rows, dataset = [dataset.indices[index] for index in rows], dataset.dataset
        if set(map(type, rows)) == {int} and all(map(_is_plain, dataset.tensors)):
            where = torch.tensor(rows)
            try:
                return _Batch(tensor.index_select(0, where.to(tensor.device)) for tensor in dataset.tensors)
            except (IndexError, RuntimeError):  # counted from the end, or an error of which PyTorch's own text is known
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

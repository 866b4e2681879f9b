"""Data loaders that give a rank its share of every global batch.

The user's loader stays what it is: same object, same length, same batches in the same order. Only what an iteration
yields is cut. For map-style data the cut is made on the batch of *indices*, so a rank loads no sample that is not its
own, with the user's sampler, workers, collate function and pinning; the sampler draws the numbers that it would have
drawn on one process. What has no batches of indices (iterable data, batches made by the data set) is cut after loading.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader

from .shares import Share


class SharedLoaders:
    """Splits the batches of loaders while the run says so.

    Parameters
    ----------
    share : callable
        Returns the rank's share of a batch of a given size.
    split_now : callable
        Whether an iteration that starts now is to be split.
    on_batch : callable
        Told of every batch of a split loader just before the cell gets it: its share, the number of the batch from 1, and
        how many there are (``None``: not known).
    """

    def __init__(
        self,
        *,
        share: Callable[[int], Share],
        split_now: Callable[[], bool],
        on_batch: Callable[[Share, int, int | None], None],
    ) -> None:
        self._share = share
        self._split_now = split_now
        self._on_batch = on_batch
        self._inner: WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = WeakKeyDictionary()

    def iterate(self, original: Callable[[DataLoader[Any]], Any], loader: DataLoader[Any]) -> Iterator[Any]:
        """Return an iterator over `loader`; `original` is the loader's own ``__iter__``."""
        if not self._split_now():
            return original(loader)  # type: ignore[no-any-return]
        if not _has_index_batches(loader):
            return _SplitIterator(original(loader), _length(loader), self._cut_loaded, self._on_batch)
        inner, batches = self._by_index(loader)
        return _SplitIterator(original(inner), _length(loader), batches.next_share, self._on_batch)

    def _by_index(self, loader: DataLoader[Any]) -> tuple[DataLoader[Any], _ShareOfBatches]:
        inner = self._inner.get(loader)
        if inner is None or not loader.persistent_workers:
            inner = copy.copy(loader)
            # DataLoader forbids to set these after it was made; the copy has made nothing yet.
            inner.__dict__["batch_sampler"] = _ShareOfBatches(loader.batch_sampler, self._share)
            inner.__dict__["_iterator"] = None
            self._inner[loader] = inner
        batches = inner.batch_sampler
        assert isinstance(batches, _ShareOfBatches)
        batches.shares.clear()
        return inner, batches

    def _cut_loaded(self, batch: Any) -> tuple[Any, Share]:
        total = _batch_length(batch)
        if total is None:
            return batch, Share(0, 1, 1)
        share = self._share(total)
        return _cut(batch, share.loaded, total), share


class _ShareOfBatches:
    """A batch sampler that yields the rank's part of each batch of another."""

    def __init__(self, batches: Any, share: Callable[[int], Share]) -> None:
        self._batches = batches
        self._share = share
        self.shares: list[Share] = []  # of batches whose indices were drawn and whose samples have not arrived yet

    def __iter__(self) -> Iterator[list[Any]]:
        for indices in self._batches:
            share = self._share(len(indices))
            self.shares.append(share)
            yield indices[share.loaded]

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def next_share(self, batch: Any) -> tuple[Any, Share]:
        return batch, self.shares.pop(0)


class _SplitIterator:
    """The iterator that the cell holds."""

    def __init__(
        self,
        batches: Any,
        length: int | None,
        cut: Callable[[Any], tuple[Any, Share]],
        on_batch: Callable[[Share, int, int | None], None],
    ) -> None:
        self._batches = batches
        self._length = length
        self._cut = cut
        self._on_batch = on_batch
        self._count = 0

    def __iter__(self) -> _SplitIterator:
        return self

    def __next__(self) -> Any:
        batch, share = self._cut(next(self._batches))
        self._count += 1
        self._on_batch(share, self._count, self._length)
        return batch

    def __len__(self) -> int:
        return len(self._batches)


def _has_index_batches(loader: DataLoader[Any]) -> bool:
    return loader.batch_sampler is not None and loader._dataset_kind == 0  # type: ignore[attr-defined]  # _DatasetKind.Map


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:  # iterable data without a length
        return None


def _batch_length(batch: Any) -> int | None:
    """Return the size of dim 0 of the first tensor in a batch, ``None`` if there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else None
    parts: Any = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    for part in parts:
        found = _batch_length(part)
        if found is not None:
            return found
    return None


def _cut(batch: Any, part: slice, total: int) -> Any:
    """Return `part` along dim 0 of everything in `batch` that has `total` entries there."""
    if isinstance(batch, torch.Tensor):
        return batch[part] if batch.dim() and batch.shape[0] == total else batch
    if isinstance(batch, Mapping):
        return type(batch)({key: _cut(value, part, total) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_cut(value, part, total) for value in batch))
    if isinstance(batch, list | tuple):
        if len(batch) == total and not any(isinstance(value, torch.Tensor) for value in batch):
            return batch[part]  # one entry per sample: texts, names
        return type(batch)(_cut(value, part, total) for value in batch)
    return batch

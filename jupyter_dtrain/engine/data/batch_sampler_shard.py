"""Batches of indices, of which each rank is given the part that is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ..rng.streams import LoadingStream
from ..tensor.batch_shard import BatchShard
from .batch_layout import Layout
from .collate import Collation
from .fetch import copy_of


def with_batches(loader: DataLoader[Any], batches: Any) -> DataLoader[Any]:
    """Return a copy of `loader` that takes its batches of indices from `batches`."""
    return copy_of(loader, batch_sampler=batches)


class JoinedBatches:
    """A batch sampler that joins every `together` batches of another; the last one may have fewer.

    ``iter()`` of the other is taken at once, as PyTorch does before it draws the loader's seed, and not with the first batch: it may draw.
    """

    def __init__(self, batches: Any, together: int) -> None:
        self._batches, self._together = batches, together

    def __iter__(self) -> Iterator[list[Any]]:
        return self._join(iter(self._batches))

    def _join(self, batches: Iterator[Any]) -> Iterator[list[Any]]:
        while some := list(islice(batches, self._together)):
            yield [index for batch in some for index in batch]

    def __len__(self) -> int:
        return -(-len(self._batches) // self._together)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


Loaded = tuple[Any, BatchShard | None, Layout | None]
Check = Callable[[Any, BatchShard], None]


class BatchSamplerShard:
    """A batch sampler that yields the rank's part of each batch of another.

    ``iter()`` of the other is taken at once, as PyTorch does, before the loader's seed is drawn: it may draw itself.
    """

    def __init__(self, batches: Any, share: Callable[[int], BatchShard], stream: LoadingStream | None, collation: Collation | None) -> None:
        self._batches = batches
        self._collation = collation
        self._share = share
        self._stream = stream
        self.before_loading: Check | None = None
        self.before_taking: Check | None = None
        self.pending: list[tuple[BatchShard, Any]] = []  # batches whose indices were drawn and whose samples have not arrived yet

    def __iter__(self) -> Iterator[Any]:
        with self._drawing():
            batches = iter(self._batches)
        return self._shares(batches)

    def _drawing(self) -> AbstractContextManager[None]:
        return nullcontext() if self._stream is None else self._stream.drawing()

    def _shares(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._drawing():
                indices = next(batches, None)
            if indices is None:
                return
            if not isinstance(indices, Sequence | np.ndarray | torch.Tensor):
                indices = list(indices)  # a set, a generator: all that a loader asks is to walk over them
            share = self._share(len(indices))
            if self.before_loading is not None:
                self.before_loading(indices, share)
            self.pending.append((share, indices))
            yield indices[share.loaded]

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def next_share(self, batch: Any) -> Loaded:
        """Return the next batch as the rank has it, where it has been asked for: `batch` is what was loaded."""
        share, indices = self.pending.pop(0)
        return (batch, share, None) if self._collation is None else self._collation.local_shard(batch, share, indices)

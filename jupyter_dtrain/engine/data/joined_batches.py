"""Join several batches of a loader into the batch of one step, for a `batch_size` that is meant per rank."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from .fetch import copy_of


def with_batches(loader: DataLoader[Any], batches: Any) -> DataLoader[Any]:
    """Return a copy of `loader` that takes its batches of indices from `batches`."""
    return copy_of(loader, batch_sampler=batches)


class JoinedBatches:
    """A batch sampler that joins every `together` batches of another; the last one may have fewer.

    ``iter()`` of the other is called at once and not with the first batch, because it may draw random numbers and PyTorch calls it before
    it draws the loader's seed.
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

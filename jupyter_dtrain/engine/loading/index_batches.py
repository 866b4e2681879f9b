"""Batches of indices of a loader, joined: what it loads follows from them, whatever its data and its sampler are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from .copies import copy_of


def with_batches(loader: DataLoader[Any], batches: Any) -> DataLoader[Any]:
    """Return a copy of `loader` that takes its batches of indices from `batches`."""
    return copy_of(loader, batch_sampler=batches)


class JoinedBatches:
    """A batch sampler that joins every `together` batches of another; the last one may have fewer."""

    def __init__(self, batches: Any, together: int) -> None:
        self._batches, self._together = batches, together

    def __iter__(self) -> Iterator[list[Any]]:
        batches = iter(self._batches)
        while some := list(islice(batches, self._together)):
            yield [index for batch in some for index in batch]

    def __len__(self) -> int:
        return -(-len(self._batches) // self._together)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

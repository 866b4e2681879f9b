"""Sample rows of row groups. The order of an epoch is drawn as a single seed, and a position in it is a single number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import Sampler

from .order import BatchRows, EpochOrder

Orders = Callable[[int | None], EpochOrder]
"""Makes the order of an epoch from its seed."""
_STEP = 4096  # rows that are computed at a time


class SeekableIterator(ABC):
    """An iterator that can skip items without computing them."""

    @abstractmethod
    def skip(self, num: int) -> None:
        """Skip the next `num` items, or all remaining ones if there are fewer."""


class _Seeded:
    """Draw the seed of each epoch.

    Parameters
    ----------
    shuffle : bool
    seed : int, optional
        Seed of an own generator; ``None``: epochs' seeds are drawn from PyTorch's, as by `torch.utils.data.RandomSampler`.
    """

    def __init__(self, shuffle: bool, seed: int | None) -> None:
        self.shuffle = shuffle
        self.generator = None if seed is None or not shuffle else torch.Generator().manual_seed(seed)

    def draw(self) -> int | None:
        """Return the seed of the epoch that begins; ``None`` without shuffling."""
        if not self.shuffle:
            return None
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())


class RowSampler(_Seeded, Sampler[int]):
    """Rows one by one, for ``DataLoader(dataset, batch_size=…, sampler=dataset.sampler)``."""

    def __init__(self, orders: Orders, num_rows: int, *, shuffle: bool, seed: int | None) -> None:
        super().__init__(shuffle, seed)
        self._orders, self._num_rows = orders, num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __iter__(self) -> Iterator[int]:
        order = self._orders(self.draw())  # drawn with the first row, as PyTorch's samplers do: a loader with workers makes two iterators
        # With batches of one row there is one lane, so its rows are consecutive.
        for begin in range(0, self._num_rows, _STEP):
            yield from order.span(begin, min(begin + _STEP, self._num_rows)).tolist()


class RowBatchSampler(_Seeded, Sampler[Sequence[int]]):
    """Batches of rows, each from few row groups, for ``DataLoader(dataset, batch_sampler=dataset.batch_sampler(…))``."""

    def __init__(self, orders: Orders, num_rows: int, batch_size: int, *, drop_last: bool, shuffle: bool, seed: int | None) -> None:
        super().__init__(shuffle, seed)
        self._orders, self._num_rows = orders, num_rows
        self.batch_size, self.drop_last = batch_size, drop_last

    def __len__(self) -> int:
        return self._num_rows // self.batch_size if self.drop_last else -(-self._num_rows // self.batch_size)

    def __iter__(self) -> Iterator[Sequence[int]]:
        return _Batches(lambda: self._orders(self.draw()), len(self), self.batch_size, self._num_rows)


class _Batches(SeekableIterator, Iterator[Any]):
    def __init__(self, draw: Callable[[], EpochOrder], number: int, batch_size: int, num_rows: int) -> None:
        self._draw, self._number, self._batch_size, self._num_rows = draw, number, batch_size, num_rows
        self._next = 0

    @cached_property
    def _order(self) -> EpochOrder:
        # Drawn with the first batch, as PyTorch's samplers do: a loader with workers makes two iterators.
        return self._draw()

    def __next__(self) -> BatchRows:
        if self._next >= self._number:
            raise StopIteration
        batch, self._next = self._next, self._next + 1
        return BatchRows(self._order, batch, 0, min(self._batch_size, self._num_rows - batch * self._batch_size))

    def skip(self, num: int) -> None:
        _ = self._order  # drawn here, as iterating over the batches would have done
        self._next = min(self._next + num, self._number)

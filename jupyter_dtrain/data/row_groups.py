"""A PyTorch map-style data set of row groups, independent of their source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from ..errors import UsageError
from ..system import read_counters
from ..system.read_counters import ROWS, TRANSFORMS
from .cache import GroupCache, cache_of
from .columns import Selection
from .decoded_rows import Piece, gather
from .order import BatchRows, EpochOrder, Numbers, plan
from .samplers import RowBatchSampler, RowSampler
from .whole_batches import RowBatch, row_of

CACHE_BYTES = 1 << 29


class RowGroups(ABC):
    """A source of rows that is read one group at a time.

    Parameters
    ----------
    counts : array of int, shape (groups,)
        Rows of each group, none of them 0.
    """

    features: Selection | None = None
    target: Selection | None = None

    def __init__(self, counts: Numbers) -> None:
        self.counts = counts

    @abstractmethod
    def name(self, group: int) -> str:
        """Return the name of a group for messages."""

    @abstractmethod
    def expected_bytes(self, group: int) -> int:
        """Return the approximate bytes of a group in memory, which must be the same in each process."""

    @abstractmethod
    def load(self, group: int) -> tuple[Any, int]:
        """Return a group's features and, if there are any, its targets, as `gather` takes them, and their bytes.

        Raises
        ------
        DataError
            It cannot be read, or has changed.
        """


class RowGroupDataset(Dataset[Any]):
    """Rows of files or collections that need not fit into memory.

    ``dataset.loader(batch_size=256)`` is a `torch.utils.data.DataLoader` like any other, in one process and on engines.

    Parameters
    ----------
    source : RowGroups
    transform, target_transform : callable, optional
        Called with each sample's features, or its target, when the sample is loaded, as in torchvision.
    shuffle : bool
        Whether `sampler`, `batch_sampler` and `loader` give rows in random order.
    seed : int, optional
        Of the orders of the epochs, which are the same then in each run. By default they are drawn from PyTorch's stream
        (``torch.manual_seed``), as those of ``DataLoader(shuffle=True)``.
    cache_bytes : int
        Memory for decoded row groups in each process. How many groups are mixed in a batch, and so the order of rows, goes by it.
    window : int, optional
        Row groups within which rows are permuted, for each lane of a batch. By default as many as make 65,536 rows, if that fits.
    """

    def __init__(
        self,
        source: RowGroups,
        *,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        window: int | None = None,
    ) -> None:
        if cache_bytes < 1 or (window is not None and window < 1):
            raise UsageError("`cache_bytes` and `window` are at least 1.")
        if target_transform is not None and source.target is None:
            raise UsageError("There is a `target_transform` and no `target`.")
        self._source = source
        self.transform, self.target_transform = transform, target_transform
        self.shuffle, self.seed, self.cache_bytes, self.window = shuffle, seed, cache_bytes, window
        self._starts = np.concatenate([[0], np.cumsum(source.counts)])

    # -- samples -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Any:
        """Return one sample: its features, or a tuple of features and target."""
        row = int(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return next(iter(self.__getitems__([row % len(self)])))

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return the samples of a batch, which PyTorch's ``default_collate`` does not have to collate one by one."""
        rows = indices.numbers if isinstance(indices, BatchRows) else np.asarray(indices, np.int64)
        if not len(rows):
            return []
        read_counters.add(ROWS, len(rows))
        pieces = self._pieces(rows)
        if isinstance(indices, BatchRows) and indices.ahead:
            self._cache().read_ahead(indices.ahead, self._source.load)
        selections = (self._source.features, self._source.target)
        parts = [
            gather([(groups[number], taken, where) for groups, taken, where in pieces], len(rows), selections[number])
            for number in range(len(pieces[0][0]))
        ]
        if self.transform is None and self.target_transform is None and not isinstance(parts[0], list):
            return RowBatch(len(rows), *parts)
        with read_counters.spent(TRANSFORMS):
            return list(self._transformed(parts, len(rows)))

    def _transformed(self, parts: list[Any], total: int) -> Iterator[Any]:
        for number in range(total):
            sample = row_of(parts[0], number)
            sample = sample if self.transform is None else self.transform(sample)
            if len(parts) == 1:
                yield sample
                continue
            target = row_of(parts[1], number)
            yield sample, target if self.target_transform is None else self.target_transform(target)

    def _pieces(self, rows: Numbers) -> list[Piece]:
        """Return, by group, its contents, the rows to take, and their positions in the batch."""
        of_rows = np.searchsorted(self._starts, rows, side="right") - 1
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}")
        order = np.argsort(of_rows, kind="stable")
        groups, begins = np.unique(of_rows[order], return_index=True)
        loaded = self._cache().get(groups.tolist(), self._source.load)
        if len(groups) == 1:
            return [(loaded[int(groups[0])], rows - self._starts[groups[0]], None)]
        wheres = np.split(order, begins[1:])
        return [(loaded[group], rows[where] - self._starts[group], where) for group, where in zip(groups.tolist(), wheres, strict=True)]

    def _cache(self) -> GroupCache:
        return cache_of(self, partial(GroupCache, self.cache_bytes, self._source.expected_bytes))

    # -- their order -------------------------------------------------------------------------------------------------

    @property
    def sampler(self) -> RowSampler:
        """A sampler for ``DataLoader(dataset, batch_size=…, sampler=dataset.sampler)``, with its own generator if there is a seed."""
        cuts, window = self._plan(1)
        orders = partial(_order, self._starts, 1, cuts, window)
        return RowSampler(orders, len(self), shuffle=self.shuffle, seed=self.seed)

    def batch_sampler(self, batch_size: int, *, drop_last: bool = False) -> RowBatchSampler:
        """Return a batch sampler with which each engine reads its own row groups."""
        if batch_size < 1:
            raise UsageError(f"A batch has at least one row, and `batch_size` is {batch_size}.")
        cuts, window = self._plan(batch_size)
        orders = partial(_order, self._starts, batch_size, cuts, window)
        return RowBatchSampler(orders, len(self), batch_size, drop_last=drop_last, shuffle=self.shuffle, seed=self.seed)

    def loader(self, batch_size: int, *, drop_last: bool = False, **options: Any) -> DataLoader[Any]:
        """Return ``DataLoader(dataset, batch_sampler=dataset.batch_sampler(batch_size, drop_last=…), **options)``."""
        batches: Any = self.batch_sampler(batch_size, drop_last=drop_last)  # yields sequences that are not lists
        return DataLoader(self, batch_sampler=batches, **options)

    def _plan(self, batch_size: int) -> tuple[tuple[int, ...], int]:
        if not self.shuffle:  # rows in stored order
            return (0, batch_size), 1
        largest = self._source.expected_bytes(int(self._source.counts.argmax()))
        return plan(self._source.counts, largest, self.cache_bytes, batch_size, self.window)

    # -- what it reads -----------------------------------------------------------------------------------------------

    @property
    def num_row_groups(self) -> int:
        """Number of row groups."""
        return len(self._source.counts)

    @property
    def cache_info(self) -> dict[str, int]:
        """What this process has read: ``nbytes`` and ``most_bytes`` of decoded groups in memory, and ``num_loaded`` groups."""
        cache = self._cache()
        return {"nbytes": cache.nbytes, "most_bytes": cache.most_bytes, "num_loaded": cache.num_loaded}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows in {self.num_row_groups:,} row groups, from {self._source.name(0)})"


def _order(starts: Numbers, batch_size: int, cuts: tuple[int, ...], window: int, seed: int | None) -> EpochOrder:
    return EpochOrder(starts, batch_size, cuts=cuts, window=window, seed=seed)

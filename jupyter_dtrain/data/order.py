"""Compute the order of an epoch's rows from its seed, so that any batch is known without the batches before it.

Row groups are shuffled, and rows are shuffled within windows of some groups, so that few groups are in memory at a time. A batch consists
of consecutive *lanes*, each with row groups of its own. Lanes are cut where the shares of 1, 2, 3 … engines begin and end. So an engine
reads only the row groups of its own lanes, and the batches are the same for any number of engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

ENGINES = (1, 2, 3, 4, 6, 8)
"""Numbers of engines whose shares consist of complete lanes, each with its own row groups. With others, some groups are read twice."""
ROWS_TO_MIX = 1 << 16
"""Rows of a window, if so many fit into memory."""


def lane_cuts(batch_size: int, engines: Sequence[int] = ENGINES) -> tuple[int, ...]:
    """Return the boundaries of the shares of all these numbers of engines in a batch, from 0 to `batch_size`."""
    return tuple(sorted({round(batch_size * rank / number) for number in engines for rank in range(number + 1)}))


def plan(counts: Numbers, largest: int, cache_bytes: int, batch_size: int, window: int | None = None) -> tuple[tuple[int, ...], int]:
    """Return the boundaries of lanes and the groups of a window, so that two windows for each lane fit into memory.

    Parameters
    ----------
    counts : array of int, shape (groups,)
        Rows of each group.
    largest : int
        Bytes of the largest group.
    cache_bytes : int
    batch_size : int
    window : int, optional
        Groups of a window, if given by the user.
    """
    room = max(1, cache_bytes // (2 * max(1, largest)))  # groups, half of which are read ahead
    cuts = lane_cuts(batch_size, ENGINES[:1])
    for number in range(2, len(ENGINES) + 1):
        more = lane_cuts(batch_size, ENGINES[:number])
        if (len(more) - 1) * (window or 1) > room:
            break
        cuts = more
    if window is not None:
        return cuts, window
    wanted = -(-ROWS_TO_MIX * len(counts) // max(1, int(counts.sum())))
    return cuts, max(1, min(wanted, room // (len(cuts) - 1)))


class EpochOrder:
    """The order of rows in one epoch.

    Parameters
    ----------
    starts : array of int, shape (groups + 1,)
        First row of each group, and the number of all rows.
    batch_size : int
    cuts : sequence of int
        Boundaries of lanes in a batch, from 0 to `batch_size`.
    window : int
        Number of row groups within which rows are shuffled.
    seed : int, optional
        ``None`` for the stored order.
    """

    def __init__(self, starts: Numbers, batch_size: int, *, cuts: Sequence[int], window: int, seed: int | None) -> None:
        self._starts, self._seed, self._window = starts, seed, window
        self._groups = np.arange(len(starts) - 1)
        if seed is not None:
            np.random.default_rng([seed]).shuffle(self._groups)
        counts = (starts[1:] - starts[:-1])[self._groups]
        self._places = np.concatenate([[0], np.cumsum(counts)])  # positions of the groups in the epoch's order: (groups + 1,)
        self._batch_size, total = batch_size, int(starts[-1])
        self._num_full = total // batch_size
        # For each lane: its first position, and its rows in a batch. The last, short batch is a lane of its own.
        self._lanes = [(self._num_full * begin, end - begin) for begin, end in pairwise(cuts)]
        self._bounds = [*(first for first, _ in self._lanes), self._num_full * batch_size, total]
        self._cuts = list(cuts)
        self._permuted: dict[int, tuple[int, int, Numbers]] = {}  # by lane: its current window, the window's first position, its rows

    def rows(self, batch: int, begin: int, end: int) -> Numbers:
        """Return the row numbers at `begin` to `end` of a batch."""
        parts = [part for lane, first, last in self._spans(batch, begin, end) for part in self._of_lane(lane, first, last)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.int64)

    def span(self, first: int, last: int) -> Numbers:
        """Return the rows at positions `first` to `last`, for batches of one row."""
        return np.concatenate(list(self._of_lane(0, first, last)))

    def ahead(self, batch: int, begin: int, end: int) -> tuple[int, ...]:
        """Return the row groups that the next batches need at `begin` to `end`, after those of this batch."""
        found: dict[int, None] = {}
        for lane, _, last in self._spans(batch, begin, end):
            window = self._window_of(last - 1) + 1
            groups = range(window * self._window, min((window + 1) * self._window, len(self._groups)))
            found.update((int(self._groups[group]), None) for group in groups if self._places[group] < self._bounds[lane + 1])
        return tuple(found)

    def _spans(self, batch: int, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield each lane of a part of a batch, with the range of its positions in the epoch's order."""
        if batch >= self._num_full:  # the short batch
            if begin < end:
                first = self._bounds[-2]
                yield len(self._lanes), first + begin, first + end
            return
        for lane, (first, size) in enumerate(self._lanes):
            cut = self._cuts[lane]
            inside, outside = max(begin, cut), min(end, cut + size)
            if inside < outside:
                place = first + batch * size - cut
                yield lane, place + inside, place + outside

    def _window_of(self, place: int) -> int:
        return int(np.searchsorted(self._places, place, side="right") - 1) // self._window

    def _of_lane(self, lane: int, first: int, last: int) -> Iterator[Numbers]:
        while first < last:
            known = self._permuted.get(lane)
            if known is None or not known[1] <= first < known[1] + len(known[2]):
                known = self._permuted[lane] = self._permute(lane, self._window_of(first))
            _, begin, rows = known
            some = rows[first - begin : last - begin]
            first += len(some)
            yield some

    def _permute(self, lane: int, window: int) -> tuple[int, int, Numbers]:
        groups = slice(window * self._window, (window + 1) * self._window)
        places = self._places[groups.start : groups.stop + 1]
        begin, end = max(int(places[0]), self._bounds[lane]), min(int(places[-1]), self._bounds[lane + 1])
        parts = []
        for group, first, last in zip(self._groups[groups], places[:-1], places[1:], strict=True):
            offset = self._starts[group] - first  # from a row's position to its number
            parts.append(np.arange(max(begin, first) + offset, min(end, last) + offset))
        rows = np.concatenate(parts)
        if self._seed is not None:
            np.random.default_rng([self._seed, lane, window]).shuffle(rows)
        return window, begin, rows


class BatchRows(Sequence[int]):
    """Row numbers of a batch or of a part of it, computed when they are read.

    Parameters
    ----------
    order : EpochOrder
    batch : int
    begin, end : int
        The part of the batch.
    """

    def __init__(self, order: EpochOrder, batch: int, begin: int, end: int) -> None:
        self._order: EpochOrder | None = order
        self._batch, self._begin, self._end = batch, begin, end

    @cached_property
    def numbers(self) -> Numbers:
        """Row numbers, shape (rows,)."""
        assert self._order is not None
        return self._order.rows(self._batch, self._begin, self._end)

    @cached_property
    def ahead(self) -> tuple[int, ...]:
        """Row groups of the next batches."""
        return () if self._order is None else self._order.ahead(self._batch, self._begin, self._end)

    def __len__(self) -> int:
        return self._end - self._begin

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if not isinstance(index, slice):
            return int(self.numbers[index])
        begin, end, step = index.indices(len(self))
        if step != 1 or self._order is None:
            return [int(number) for number in self.numbers[index]]
        return BatchRows(self._order, self._batch, self._begin + begin, self._begin + max(begin, end))

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.numbers, self.ahead)  # a worker process needs no more

    def __repr__(self) -> str:
        return repr(self.numbers.tolist())


def _rebuilt(numbers: Numbers, ahead: tuple[int, ...]) -> BatchRows:
    made = BatchRows.__new__(BatchRows)
    made.__dict__.update(_order=None, _batch=0, _begin=0, _end=len(numbers), numbers=numbers, ahead=ahead)
    return made

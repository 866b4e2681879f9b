"""Which part of a global batch is whose.

A loader's ``batch_size`` is the global batch. Every rank walks the same batches in the same order and keeps a
contiguous part of each, so the parts of one batch in rank order are that batch. Parts may differ in size (a batch
that does not divide, a slower engine): gradients are weighted by it, see `gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class BatchShard:
    """A rank's part ``[start, stop)`` of a batch of `total` samples; `sizes` are the samples of all ranks, in rank order.

    Shares of different divisions are different also where this rank's part is the same, so that all ranks see it.
    """

    start: int
    stop: int
    total: int
    sizes: tuple[int, ...] = ()

    @property
    def num_samples(self) -> int:
        """Samples of the batch that are this rank's own."""
        return self.stop - self.start

    @property
    def weight(self) -> float:
        """The rank's part of the batch, from 0 to 1; over all ranks these add up to 1."""
        return self.num_samples / self.total if self.total else 0.0

    @property
    def loaded(self) -> slice:
        """The samples to load: the rank's own or, where it has none, one of the others'.

        A rank without a sample still takes part in every collective, so it computes on a sample that is not
        its own, with weight 0.
        """
        if self.num_samples or not self.total:
            return slice(self.start, self.stop)
        start = min(self.start, self.total - 1)
        return slice(start, start + 1)


def share_of(total: int, rank: int, speeds: Sequence[float]) -> BatchShard:
    """Split `total` samples in proportion to `speeds`, one of them per rank, and return the part of `rank`.

    Boundaries are the rounded cumulative sums, so the parts always add up and differ from the exact
    proportion by less than one sample.
    """
    whole = sum(speeds)

    def boundary(before: int) -> int:
        # The same expression on both sides of it: some versions of Python add up floats more exactly than step by step.
        return total if before == len(speeds) else round(total * sum(speeds[:before]) / whole)

    boundaries = [boundary(before) for before in range(len(speeds) + 1)]
    return BatchShard(boundaries[rank], boundaries[rank + 1], total, tuple(stop - start for start, stop in pairwise(boundaries)))


class BatchSharding:
    """How batches are shared out over the ranks: equally, until their speeds are told."""

    def __init__(self, *, rank: int, world_size: int) -> None:
        self._rank = rank
        self._speeds = (1.0,) * world_size
        self._known: dict[int, tuple[BatchShard, ...]] = {}  # by the size of a batch

    @property
    def speeds(self) -> tuple[float, ...]:
        """The speeds of the ranks, in any unit."""
        return self._speeds

    def follow(self, speeds: Sequence[float]) -> None:
        """Share out in proportion to `speeds`, one of them per rank, from the next batch on whose samples are drawn.

        All ranks do so at the same place of the cell.
        """
        self._speeds = tuple(speeds)
        self._known.clear()

    def of(self, total: int) -> tuple[BatchShard, ...]:
        """Return the ranks' parts of a batch of `total` samples, in rank order."""
        if total not in self._known:
            self._known[total] = tuple(share_of(total, rank, self._speeds) for rank in range(len(self._speeds)))
        return self._known[total]

    def local_shard(self, total: int) -> BatchShard:
        """Return the rank's own part of a batch of `total` samples."""
        return self.of(total)[self._rank]

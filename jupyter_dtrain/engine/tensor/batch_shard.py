"""Divide a global batch into one shard per rank.

A loader's ``batch_size`` is the global batch. Every rank walks the same batches in the same order and keeps a contiguous shard of each.
The shards of a batch, concatenated in rank order, are that batch. Shards may differ in size, because a batch does not divide evenly or
an engine is slower. Gradients are weighted by the shard's size (`backward.gradient_sync`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class BatchShard:
    """A rank's shard ``[start, stop)`` of a batch of `total` samples; `sizes` are the shard sizes of all ranks, in rank order.

    `sizes` takes part in comparisons: shards of different divisions compare unequal on all ranks, even where one rank's slice is the same.
    """

    start: int
    stop: int
    total: int
    sizes: tuple[int, ...] = ()

    @property
    def num_samples(self) -> int:
        """Number of samples in this rank's shard."""
        return self.stop - self.start

    @property
    def weight(self) -> float:
        """The shard's fraction of the batch, from 0 to 1. The weights of all ranks sum to 1."""
        return self.num_samples / self.total if self.total else 0.0

    @property
    def loaded(self) -> slice:
        """The samples to load: the rank's shard or, if that is empty, one sample of another rank.

        A rank with an empty shard still takes part in every collective. It computes on that sample with weight 0.
        """
        if self.num_samples or not self.total:
            return slice(self.start, self.stop)
        start = min(self.start, self.total - 1)
        return slice(start, start + 1)


def share_of(total: int, rank: int, speeds: Sequence[float]) -> BatchShard:
    """Split `total` samples in proportion to `speeds`, one per rank, and return the shard of `rank`.

    Boundaries are the rounded cumulative sums. The sizes sum to `total` and differ from the exact proportion by less than one sample.
    """
    whole = sum(speeds)

    def boundary(before: int) -> int:
        # `sum` in numerator and denominator: some Python versions sum floats more exactly than a running total does.
        return total if before == len(speeds) else round(total * sum(speeds[:before]) / whole)

    boundaries = [boundary(before) for before in range(len(speeds) + 1)]
    return BatchShard(boundaries[rank], boundaries[rank + 1], total, tuple(stop - start for start, stop in pairwise(boundaries)))


class BatchSharding:
    """Divides batches over the ranks: equally, until :meth:`follow` sets their speeds.

    Parameters
    ----------
    rank, world_size : int
    """

    def __init__(self, *, rank: int, world_size: int) -> None:
        self._rank = rank
        self._speeds = (1.0,) * world_size
        self._known: dict[int, tuple[BatchShard, ...]] = {}  # by the size of a batch

    @property
    def speeds(self) -> tuple[float, ...]:
        """The speeds of the ranks, in any unit."""
        return self._speeds

    def follow(self, speeds: Sequence[float]) -> None:
        """Divide in proportion to `speeds`, one per rank, from the next batch whose samples are drawn.

        All ranks must call this at the same place of the cell.
        """
        self._speeds = tuple(speeds)
        self._known.clear()

    def of(self, total: int) -> tuple[BatchShard, ...]:
        """Return the shards of a batch of `total` samples, in rank order."""
        if total not in self._known:
            self._known[total] = tuple(share_of(total, rank, self._speeds) for rank in range(len(self._speeds)))
        return self._known[total]

    def local_shard(self, total: int) -> BatchShard:
        """Return this rank's shard of a batch of `total` samples."""
        return self.of(total)[self._rank]

"""Where the time of each rank of a run has gone, summed over the times that the rank has started.

An engine reports sums since it began, so that a report that is lost or comes twice costs nothing. One that begins again, in the place of
an engine that died, goes on from what was spent before.
"""

from __future__ import annotations

from dataclasses import replace

from ..protocol import TimeSplit

PARTS = ("data", "forward", "backward", "communication", "optimizer", "other")


class TimeSplits:
    """Sums the reports of all ranks. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._before: dict[int, TimeSplit] = {}  # until the rank began the last time
        self._now: dict[int, TimeSplit] = {}
        self._fresh: set[int] = set()

    def begin(self, rank: int) -> None:
        """Note that `rank` begins, for the first time or again."""
        if rank in self._now:
            self._before[rank] = self._now[rank]

    def add(self, split: TimeSplit) -> None:
        """Take a report."""
        before = self._before.get(split.rank)
        if before is not None:
            split = replace(split, **{part: getattr(before, part) + getattr(split, part) for part in PARTS})
        self._now[split.rank] = split
        self._fresh.add(split.rank)

    def all(self) -> list[TimeSplit]:
        """Return the sums of all ranks."""
        return [self._now[rank] for rank in sorted(self._now)]

    def fresh(self) -> list[TimeSplit]:
        """Return the sums that have changed since the last call."""
        fresh, self._fresh = sorted(self._fresh), set()
        return [self._now[rank] for rank in fresh]

"""What ranks report of a run beside its steps: where their time has gone, their devices, notices and hyperparameters."""

from __future__ import annotations

import linecache
import threading
from collections.abc import Mapping
from dataclasses import replace

from ..protocol import DeviceUse, Hyperparameters, Notice, TimeSplit, Value

# Where the time of each rank of a run has gone, summed over the times that the rank has started.
#
# An engine reports sums since it began, so that a report that is lost or comes twice costs nothing. One that begins again, in the place of
# an engine that died, goes on from what was spent before.

PARTS = ("data", "forward", "backward", "communication", "optimizer", "other")
MAX_CODE = 200
"""Characters of a line that are shown."""
READ = ("rows", "bytes_read", "files", "partitions", "decoding", "transforms")


class TimeSplits:
    """Sums the reports of all ranks. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._before: dict[int, TimeSplit] = {}  # until the rank began the last time
        self._now: dict[int, TimeSplit] = {}
        self._fresh: set[int] = set()

    def start(self, rank: int) -> None:
        """Note that `rank` begins, for the first time or again."""
        if rank in self._now:
            self._before[rank] = self._now[rank]

    def add(self, split: TimeSplit) -> TimeSplit:
        """Take a report, and return the rank's sums."""
        before = self._before.get(split.rank)
        if before is not None:
            split = replace(split, **{part: getattr(before, part) + getattr(split, part) for part in (*PARTS, *READ)})
        if split.busiest_line and not split.busiest_code:
            # Here, where the notebook's cells are: an engine has their code and not their text.
            code = linecache.getline(split.busiest_file, split.busiest_line).strip()
            split = replace(split, busiest_code=code[:MAX_CODE])
        self._now[split.rank] = split
        self._fresh.add(split.rank)
        return split

    def all(self) -> list[TimeSplit]:
        """Return the sums of all ranks."""
        return [self._now[rank] for rank in sorted(self._now)]

    def fresh(self) -> list[TimeSplit]:
        """Return the sums that have changed since the last call."""
        fresh, self._fresh = sorted(self._fresh), set()
        return [self._now[rank] for rank in fresh]


class DeviceReports:
    """The latest report on each rank's device. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._latest: dict[int, DeviceUse] = {}
        self._fresh: set[int] = set()

    def add(self, use: DeviceUse) -> None:
        """Take a report."""
        self._latest[use.rank] = use
        self._fresh.add(use.rank)

    def keep(self, world_size: int) -> None:
        """Forget the ranks that are no more."""
        self._latest = {rank: use for rank, use in self._latest.items() if rank < world_size}
        self._fresh &= self._latest.keys()

    def all(self) -> list[DeviceUse]:
        """Return the latest of all ranks."""
        return [self._latest[rank] for rank in sorted(self._latest)]

    def fresh(self) -> list[DeviceUse]:
        """Return those since the last call."""
        fresh, self._fresh = sorted(self._fresh), set()
        return [self._latest[rank] for rank in fresh]


# What a run has to say to the user, each text once: all ranks say the same.

MAX_NOTICES = 100
"""Notices of one run that are shown; a run that says more says it in a loop."""


class Notices:
    """The notices of one run, in order."""

    def __init__(self) -> None:
        self._by_text: dict[str, Notice] = {}
        self._fresh: list[Notice] = []

    def add(self, notice: Notice) -> None:
        """Add one, unless its text was there."""
        if notice.text not in self._by_text and len(self._by_text) < MAX_NOTICES:
            self._by_text[notice.text] = notice
            self._fresh.append(notice)

    def all(self) -> list[Notice]:
        """Return all of them."""
        return list(self._by_text.values())

    def fresh(self) -> list[Notice]:
        """Return those since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh


class KnownHyperparameters:
    """The hyperparameters of a run by name. Events come from one thread, the store is written by another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Value] = {}
        self._written: dict[str, Value] = {}  # as the store has them

    def start(self, values: Mapping[str, Value], *, written: bool = False) -> None:
        """Begin with `values`, which the store may have already."""
        with self._lock:
            self._values = dict(values)
            self._written = dict(values) if written else {}

    def note(self, event: Hyperparameters) -> None:
        """Take what was found where nothing is known of that name, and what was given in its place."""
        with self._lock:
            for name, value in event.values.items():
                if event.given or name not in self._values:
                    self._values[name] = value

    def take(self) -> dict[str, Value] | None:
        """Return all of them if they are others than at the last call."""
        with self._lock:
            if self._values == self._written:
                return None
            self._written = dict(self._values)
            return self._written

"""Collect what ranks report beside steps: time splits, device use, notices and hyperparameters."""

from __future__ import annotations

import linecache
import threading
from collections.abc import Mapping
from dataclasses import replace

from ..protocol import DeviceUse, Hyperparameters, Notice, TimeSplit, Value

# Time splits: where the time of each rank goes, summed over restarts of the rank.
#
# An engine reports sums since its start, so that a lost or repeated report does no harm. For an engine that replaces a dead one, the sums
# of its predecessor are added.

PARTS = ("data", "forward", "backward", "communication", "optimizer", "other")
MAX_CODE = 200
"""Characters of a code line that are shown."""
READ = ("rows", "bytes_read", "files", "partitions", "decoding", "transforms")


class TimeSplits:
    """Sum the time splits of all ranks. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._before: dict[int, TimeSplit] = {}  # sums until the rank's last start
        self._now: dict[int, TimeSplit] = {}
        self._fresh: set[int] = set()

    def start(self, rank: int) -> None:
        """Note that `rank` starts, for the first time or again."""
        if rank in self._now:
            self._before[rank] = self._now[rank]

    def add(self, split: TimeSplit) -> TimeSplit:
        """Add a report, and return the rank's sums."""
        before = self._before.get(split.rank)
        if before is not None:
            split = replace(split, **{part: getattr(before, part) + getattr(split, part) for part in (*PARTS, *READ)})
        if split.busiest_line and not split.busiest_code:
            # The kernel has the text of the notebook's cells; an engine has only their code.
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
    """Keep the latest report on each rank's device. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._latest: dict[int, DeviceUse] = {}
        self._fresh: set[int] = set()

    def add(self, use: DeviceUse) -> None:
        """Add a report."""
        self._latest[use.rank] = use
        self._fresh.add(use.rank)

    def keep(self, world_size: int) -> None:
        """Drop the reports of ranks that no longer exist."""
        self._latest = {rank: use for rank, use in self._latest.items() if rank < world_size}
        self._fresh &= self._latest.keys()

    def all(self) -> list[DeviceUse]:
        """Return the latest reports of all ranks."""
        return [self._latest[rank] for rank in sorted(self._latest)]

    def fresh(self) -> list[DeviceUse]:
        """Return the reports since the last call."""
        fresh, self._fresh = sorted(self._fresh), set()
        return [self._latest[rank] for rank in fresh]


# Notices of a run to the user, each text once, as all ranks report the same.

MAX_NOTICES = 100
"""Maximum notices of one run that are shown. A run with more probably reports them in a loop."""


class Notices:
    """Notices of one run, in order."""

    def __init__(self) -> None:
        self._by_text: dict[str, Notice] = {}
        self._fresh: list[Notice] = []

    def add(self, notice: Notice) -> None:
        """Add a notice, unless its text is known."""
        if notice.text not in self._by_text and len(self._by_text) < MAX_NOTICES:
            self._by_text[notice.text] = notice
            self._fresh.append(notice)

    def all(self) -> list[Notice]:
        """Return all notices."""
        return list(self._by_text.values())

    def fresh(self) -> list[Notice]:
        """Return the notices since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh


class KnownHyperparameters:
    """Hyperparameters of a run by name. Thread-safe: events come on one thread, the store is written on another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Value] = {}
        self._written: dict[str, Value] = {}  # values in the store

    def start(self, values: Mapping[str, Value], *, written: bool = False) -> None:
        """Start with `values`; `written` tells whether the store has them already."""
        with self._lock:
            self._values = dict(values)
            self._written = dict(values) if written else {}

    def note(self, event: Hyperparameters) -> None:
        """Add hyperparameters that were found unless their names are known, and replace known ones by those that the cell gave."""
        with self._lock:
            for name, value in event.values.items():
                if event.given or name not in self._values:
                    self._values[name] = value

    def take(self) -> dict[str, Value] | None:
        """Return all hyperparameters if they have changed since the last call, else ``None``."""
        with self._lock:
            if self._values == self._written:
                return None
            self._written = dict(self._values)
            return self._written

"""Control groups, each of which allows one process so much memory."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection
from pathlib import Path

import psutil

OLD, NEW = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def why_none() -> str | None:
    """Return why none can be made here."""
    is_v2 = (NEW / "cgroup.controllers").exists()
    top = NEW if is_v2 else OLD
    if not os.access(top / "cgroup.procs", os.W_OK) or (is_v2 and "memory" not in (NEW / "cgroup.subtree_control").read_text()):
        return "no control groups of memory to be made here"
    return None


class ControlGroups:
    """A control group of memory for each process that is given one.

    Parameters
    ----------
    num_bytes : int
        That a process may take from then on: what it has is not counted again.
    """

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._is_v2 = (NEW / "cgroup.controllers").exists()
        self._numbers = itertools.count()
        self._known: set[int] = set()
        self.made: list[Path] = []

    def limit(self, watchers: list[int], *, but: Collection[int] = ()) -> None:
        """Put each process of a cluster that is in none yet into a group of its own, `but` some."""
        found = set()
        for watcher in watchers:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
                found |= {watcher, *(process.pid for process in psutil.Process(watcher).children(recursive=True))}
        for pid in found - self._known - set(but):
            self._known.add(pid)
            group = (NEW if self._is_v2 else OLD) / f"dtrain-test-{os.getpid()}-{id(self)}-{next(self._numbers)}"
            group.mkdir()
            self.made.append(group)
            (group / ("memory.max" if self._is_v2 else "memory.limit_in_bytes")).write_text(str(self._num_bytes))
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))

    def peaks(self) -> list[int]:
        """Return the most that each process has taken."""
        name = "memory.peak" if self._is_v2 else "memory.max_usage_in_bytes"
        return [int((group / name).read_text()) for group in self.made]

    def remove(self) -> None:
        """Remove the groups, and let what is in them be where they are."""
        for group in self.made:
            for pid in (group / "cgroup.procs").read_text().split():
                (group.parent / "cgroup.procs").write_text(pid)
            group.rmdir()

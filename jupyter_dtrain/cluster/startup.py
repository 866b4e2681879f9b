"""Processes of a cluster on their way: waited for, with a sentence now and then, and with what keeps them where they do not come."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..errors import ClusterError
from .abstract_processes import Processes
from .base import Progress
from .guard import PATIENCE
from .launch_config import CONTROLLER, id_of

STEP = timedelta(seconds=0.02)  # between looks at what has no signal of its own
TELL = 1.0  # seconds between sentences about a start that is under way
NEXT_STEP = "\nRun `python -c 'import ipyparallel, torch'` in the notebook's environment to see whether engines can start at all."


class Disturbed(ClusterError):
    """What kept processes from coming up came from outside: worth a second attempt."""


class Arrival:
    """Waits for processes of a cluster, and raises a `ClusterError` that says what keeps them from coming up.

    Those that are stopped, as by a SIGSTOP, are ended: they would be waited for until the limit, and as those that have ended others can
    take their places.

    Parameters
    ----------
    processes : Processes
    log_tail : callable
        Returns the last lines of a process's log.
    names : callable
        Returns what the ranks' processes are called.
    registered : callable
        Returns the ids of the engines that can be reached, ``None`` before the controller can be.
    tell : callable, optional
        Gets a short sentence about what is going on, at least each second.
    limit : timedelta
        From now on.
    """

    def __init__(
        self,
        processes: Processes,
        *,
        log_tail: Callable[[str], str],
        names: Callable[[], Sequence[str]],
        registered: Callable[[], Sequence[int] | None],
        tell: Progress | None,
        limit: timedelta,
    ) -> None:
        self._processes, self._log_tail, self._names, self._registered = processes, log_tail, names, registered
        self.tell: Progress = tell or (lambda _sentence: None)
        self._deadline = time.monotonic() + limit.total_seconds()
        self._looked, self._stopped = time.monotonic(), set[str]()

    @property
    def seconds_left(self) -> float:
        """How long is waited still, at least a second."""
        return max(1.0, self._deadline - time.monotonic())

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self._deadline

    def of(self, is_there: Callable[[], bool], sentence: Callable[[], str]) -> None:
        """Wait until `is_there`, and tell the `sentence` where that takes a while or it says something else."""
        told, said = time.monotonic(), sentence()
        while not is_there():
            self.check()
            if (says := sentence()) != said or time.monotonic() - told > TELL:
                told, said = time.monotonic(), says
                self.tell(says)
            self._processes.wait_change(STEP)

    def of_file(self, path: Path) -> dict[str, Any]:
        """Wait until the controller has written the JSON file at `path`, and return what it holds."""
        found: list[dict[str, Any]] = []

        def is_whole() -> bool:
            with contextlib.suppress(OSError, ValueError):  # not there yet, or half-written
                found.append(json.loads(path.read_text()))
            return bool(found)

        self.of(is_whole, lambda: "waiting for the controller")
        return found[0]

    def of_engines(self, engine_ids: Sequence[int]) -> None:
        """Wait until the engines with these ids can be reached."""

        def up() -> int:
            return len(set(engine_ids).intersection(self._registered() or ()))

        self.of(lambda: up() == len(engine_ids), lambda: f"{up()} of {len(engine_ids)} engines up")

    def of_ends(self, names: Sequence[str]) -> None:
        """End the processes `names`, and wait until all have ended."""
        while left := [name for name in names if name not in self._processes.statuses]:
            for name in left:
                self._processes.signal(name, signal.SIGKILL)
            self._processes.wait_change(STEP)
            if not self._processes.guard_alive or self.is_late:
                raise ClusterError(f"The processes {', '.join(left)} cannot be ended.{NEXT_STEP}")

    def check(self) -> None:
        """Raise what keeps the cluster from coming up."""
        if time.monotonic() - self._looked > PATIENCE:
            self._looked = time.monotonic()
            self._end_stopped()
        for name in (CONTROLLER, *self._names()):
            status = self._processes.statuses.get(name)
            if status is None:
                continue
            tail = self._log_tail(name)
            kind = Disturbed if status < 0 else ClusterError
            raise kind(f"The {name} {_ended(status)} while the cluster was starting.{_logged(tail)}{NEXT_STEP}")
        if not self._processes.guard_alive:
            tail = self._log_tail("guard")
            raise Disturbed(f"The process that watches over the engines ended.{_logged(tail)}{NEXT_STEP}")
        if self.is_late:
            raise self._timeout_error()

    def _end_stopped(self) -> None:
        """End what is stopped and was at the last look."""
        self._processes.end_stopped_guard()
        stopped = set(filter(self._processes.is_stopped, self._names()))
        for name in stopped & self._stopped:
            self._processes.signal(name, signal.SIGKILL)
        self._stopped = stopped

    def _timeout_error(self) -> ClusterError:
        up, names = self._registered(), self._names()
        missing = [name for name in names if id_of(name) not in (up or ())]
        tail = self._log_tail(missing[0] if up is not None and missing else CONTROLLER)
        return ClusterError(
            f"Only {len(up or ())} of {len(names)} engines came up in time.{_logged(tail)}\n"
            "Is the machine overloaded? Try again when it has less to do, or with fewer engines."
        )


def _ended(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _logged(tail: str) -> str:
    return f" The end of its log:\n{tail}" if tail else ""

"""Wait for the processes of a cluster to start, with progress messages, and errors that say why they do not."""

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

STEP = timedelta(seconds=0.02)  # between checks of what no event reports
TELL = 1.0  # seconds between progress messages
NEXT_STEP = "\nRun `python -c 'import ipyparallel, torch'` in the notebook's environment to see whether engines can start at all."


class Disturbed(ClusterError):
    """The start failed for an external reason, so that a second attempt is worth it."""


class Arrival:
    """Wait for processes of a cluster; raise a `ClusterError` that says why they do not come up.

    Stopped processes (SIGSTOP) are killed: otherwise they would be waited for until the limit, and ended processes can be replaced.

    Parameters
    ----------
    processes : Processes
    log_tail : callable
        Returns the last lines of a process's log.
    names : callable
        Returns the names of the ranks' processes.
    registered : callable
        Returns the ids of the registered engines, ``None`` before the controller can be reached.
    tell : callable, optional
        Takes a short progress message, at least each second.
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
        """The remaining time, at least a second."""
        return max(1.0, self._deadline - time.monotonic())

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self._deadline

    def of(self, is_there: Callable[[], bool], sentence: Callable[[], str]) -> None:
        """Wait until `is_there`; report `sentence` each second, and when it changes."""
        told, said = time.monotonic(), sentence()
        while not is_there():
            self.check()
            if (says := sentence()) != said or time.monotonic() - told > TELL:
                told, said = time.monotonic(), says
                self.tell(says)
            self._processes.wait_change(STEP)

    def of_file(self, path: Path) -> dict[str, Any]:
        """Wait until the controller has written the JSON file at `path`; return its content."""
        found: list[dict[str, Any]] = []

        def is_whole() -> bool:
            with contextlib.suppress(OSError, ValueError):  # missing or incomplete
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
        """Kill the processes `names`, and wait until all have ended."""
        while left := [name for name in names if name not in self._processes.statuses]:
            for name in left:
                self._processes.signal(name, signal.SIGKILL)
            self._processes.wait_change(STEP)
            if not self._processes.guard_alive or self.is_late:
                raise ClusterError(f"The processes {', '.join(left)} cannot be ended.{NEXT_STEP}")

    def check(self) -> None:
        """Raise an error if something prevents the cluster from coming up."""
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
        """Kill processes that are stopped now and were at the last check."""
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
            "The machine may be overloaded. Try again when it is less busy, or use fewer engines."
        )


def _ended(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _logged(tail: str) -> str:
    return f" The end of its log:\n{tail}" if tail else ""

"""The interface to the processes of one host: start them by name, and report when they end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal

StartMethod = Literal["exec", "template", "fork"]
"""How a process is started: ``guard.py`` explains each."""


class Processes(ABC):
    """The processes of a cluster on one host, by name. They end with the process that has made this object, however that ends.

    Attributes
    ----------
    pids : dict of str to int
        Pid of every process that was started.
    statuses : dict of str to int
        Exit status (negative: the signal) of every process that has ended.
    """

    pids: dict[str, int]
    statuses: dict[str, int]

    @property
    @abstractmethod
    def guard_pid(self) -> int:
        """Pid of the guard, which watches the processes."""

    @property
    @abstractmethod
    def guard_alive(self) -> bool:
        """Whether the guard is running. If it is not, its processes are not either."""

    @abstractmethod
    def start(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, how: StartMethod = "exec") -> None:
        """Ask for a process; its pid appears in `pids`."""

    @abstractmethod
    def signal(self, name: str, number: int) -> None:
        """Send a signal to the process `name`; nothing happens if it is gone."""

    @abstractmethod
    def forget(self, name: str) -> None:
        """Forget the ended process `name`."""

    @abstractmethod
    def cpu_time(self, name: str) -> float | None:
        """Return the CPU seconds of the process `name`, ``None`` if it is gone."""

    @abstractmethod
    def is_stopped(self, name: str) -> bool:
        """Return whether the process `name` is stopped (SIGSTOP)."""

    @abstractmethod
    def end_stopped_guard(self) -> None:
        """Kill a guard that stays stopped (SIGSTOP), as it could not report deaths."""

    @abstractmethod
    def wait_change(self, limit: timedelta) -> None:
        """Wait until a process starts or ends, at most `limit`."""

    @abstractmethod
    def stop(self) -> None:
        """End all processes and wait until they are gone. Calling it again does nothing."""


MakeProcesses = Callable[[Sequence[Path], Callable[[str, int], None]], Processes]
"""Makes `Processes` from folders to remove at the end, and a callback for the name and exit status of each ended process."""

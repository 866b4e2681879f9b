"""What a cluster asks of one host: to start its processes, by name, and to tell of their ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal

StartMethod = Literal["exec", "template", "fork"]
"""How a process is started: ``guard.py`` explains each."""


class Processes(ABC):
    """The processes of a cluster on one host, by name. They end with the process that has made this object, whatever ends it.

    Attributes
    ----------
    pids : dict
        Pid of every process that was started.
    statuses : dict
        Exit status (negative: the signal) of every process that has ended.
    """

    pids: dict[str, int]
    statuses: dict[str, int]

    @property
    @abstractmethod
    def guard_pid(self) -> int:
        """Pid of what looks after them."""

    @property
    @abstractmethod
    def guard_alive(self) -> bool:
        """Whether that is running; when it is not, its processes are not either."""

    @abstractmethod
    def start(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, how: StartMethod = "exec") -> None:
        """Ask for a process; its pid appears in `pids`."""

    @abstractmethod
    def signal(self, name: str, number: int) -> None:
        """Send a signal to the process `name`; nothing happens if it is gone."""

    @abstractmethod
    def forget(self, name: str) -> None:
        """Drop what is known of the process `name`, which has ended."""

    @abstractmethod
    def cpu_time(self, name: str) -> float | None:
        """Return the seconds that the process `name` has computed, ``None`` if it is gone."""

    @abstractmethod
    def is_stopped(self, name: str) -> bool:
        """Return whether the process `name` is stopped, as by a SIGSTOP."""

    @abstractmethod
    def end_stopped_guard(self) -> None:
        """Let a guard that is stopped, as by a SIGSTOP, and does not go on have ended: it would tell of no death."""

    @abstractmethod
    def wait_change(self, limit: timedelta) -> None:
        """Wait until a process starts or ends, at most `limit`."""

    @abstractmethod
    def stop(self) -> None:
        """End all processes and wait until they are gone. Calling it again does nothing."""


MakeProcesses = Callable[[Sequence[Path], Callable[[str, int], None]], Processes]
"""Makes `Processes`, given folders to remove at the end, and what to call with the name and the exit status of each that has ended."""

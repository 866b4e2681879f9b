"""The processes of a cluster over several hosts: the controller below a guard here, engines below the agents' guards there."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from ..abstract_processes import Processes, StartMethod
from ..devices import DevicePlan
from ..guarded_processes import GuardedProcesses
from ..launch_config import engine_name
from .frames import Header
from .remote_host import RemoteHost


class HostProcesses(Processes):
    """Processes by name, wherever they are.

    Parameters
    ----------
    folders : sequence of Path
        Of this host, removed at the end.
    on_exit : callable
        As `GuardedProcesses` has it.

    Attributes
    ----------
    hosts : list of RemoteHost
        To be set once their agents have come up.
    """

    def __init__(self, folders: Sequence[Path], on_exit: Callable[[str, int], None]) -> None:
        self._here = GuardedProcesses(folders, on_exit=on_exit)
        self._on_exit = on_exit
        self.hosts: list[RemoteHost] = []
        self._where: dict[str, RemoteHost] = {}
        # Of all: who looks for one looks there.
        self.pids, self.statuses = self._here.pids, self._here.statuses

    @property
    def guard_pid(self) -> int:
        """Pid of the guard of this host."""
        return self._here.guard_pid

    @property
    def guard_alive(self) -> bool:
        """Whether that is running; without it there is no controller."""
        return self._here.guard_alive

    def start(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, how: StartMethod = "exec") -> None:
        """Ask for a process on this host."""
        self._here.start(name, argv, env=env, cwd=cwd, log=log, how=how)

    def start_engine(self, host: RemoteHost, engine_id: int, plan: DevicePlan) -> None:
        """Ask for an engine on `host`."""
        name = engine_name(engine_id)
        self._where[name] = host
        host.tell("start_engine", engine_id=engine_id, plan=vars(plan))
        if host.lost:
            self._note_exit(name, -signal.SIGKILL)

    def host_of(self, name: str) -> RemoteHost | None:
        """Return the host of a process, ``None``: this one."""
        return self._where.get(name)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to the process `name`; nothing happens if it is gone."""
        host = self._where.get(name)
        if host is None:
            self._here.signal(name, number)
        else:
            host.tell("signal", name=name, signal=int(number))

    def forget(self, name: str) -> None:
        """Drop what is known of the process `name`, which has ended."""
        self._here.forget(name)
        if (host := self._where.pop(name, None)) is not None:
            host.tell("forget", name=name)

    def cpu_time(self, name: str) -> float | None:
        """Return the seconds that the process `name` had computed when its host told last, ``None`` if it is gone."""
        host = self._where.get(name)
        return self._here.cpu_time(name) if host is None else host.cpu.get(name)

    def is_stopped(self, name: str) -> bool:
        """Return whether the process `name` is stopped, as far as its host has told."""
        host = self._where.get(name)
        return self._here.is_stopped(name) if host is None else name in host.stopped

    def end_stopped_guard(self) -> None:
        """Let a guard of this host have ended that is stopped; agents see to those of theirs."""
        self._here.end_stopped_guard()

    def wait_change(self, limit: timedelta) -> None:
        """Wait until a process starts or ends, at most `limit`."""
        self._here.wait_change(limit)

    def stop(self) -> None:
        """End all processes on all hosts, and wait until they are gone."""
        for host in self.hosts:
            host.begin_end()
        self._here.stop()
        for host in self.hosts:
            host.end()

    def take(self, host: RemoteHost, event: Header) -> None:
        """Note what a host's agent tells."""
        if event["event"] == "started":
            self._here.note_start(event["name"], event["pid"])
        elif event["event"] == "exited" and self._where.get(event["name"]) is host:
            self._note_exit(event["name"], event["status"])

    def lose(self, host: RemoteHost) -> None:
        """Note that a host is lost, and with it all that ran there."""
        for name, where in list(self._where.items()):
            if where is host and name not in self.statuses:
                self._note_exit(name, -signal.SIGKILL)

    def _note_exit(self, name: str, status: int) -> None:
        self._here.note_exit(name, status)
        self._on_exit(name, status)

"""The processes of a cluster over several hosts: the controller below this host's guard, engines below the agents' guards."""

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
    """Processes by name, on any host.

    Parameters
    ----------
    folders : sequence of Path
        Of this host, removed at the end.
    on_exit : callable
        As in `GuardedProcesses`.

    Attributes
    ----------
    hosts : list of RemoteHost
        Set once their agents are up.
    """

    def __init__(self, folders: Sequence[Path], on_exit: Callable[[str, int], None]) -> None:
        self._here = GuardedProcesses(folders, on_exit=on_exit)
        self._on_exit = on_exit
        self.hosts: list[RemoteHost] = []
        self._where: dict[str, RemoteHost] = {}
        # Shared with the local object, which records the processes of all hosts.
        self.pids, self.statuses = self._here.pids, self._here.statuses

    @property
    def guard_pid(self) -> int:
        """Pid of this host's guard."""
        return self._here.guard_pid

    @property
    def guard_alive(self) -> bool:
        """Whether this host's guard is running; without it there is no controller."""
        return self._here.guard_alive

    def start(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, how: StartMethod = "exec") -> None:
        """Request a process on this host."""
        self._here.start(name, argv, env=env, cwd=cwd, log=log, how=how)

    def start_engine(self, host: RemoteHost, engine_id: int, plan: DevicePlan) -> None:
        """Request an engine on `host`."""
        name = engine_name(engine_id)
        self._where[name] = host
        host.tell("start_engine", engine_id=engine_id, plan=vars(plan))
        if host.lost:
            self._note_exit(name, -signal.SIGKILL)

    def host_of(self, name: str) -> RemoteHost | None:
        """Return the host of a process, ``None`` for this one."""
        return self._where.get(name)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to the process `name`; ignored if it is gone."""
        host = self._where.get(name)
        if host is None:
            self._here.signal(name, number)
        else:
            host.tell("signal", name=name, signal=int(number))

    def forget(self, name: str) -> None:
        """Forget the ended process `name`."""
        self._here.forget(name)
        if (host := self._where.pop(name, None)) is not None:
            host.tell("forget", name=name)

    def cpu_time(self, name: str) -> float | None:
        """Return the CPU seconds of the process `name` as last reported by its host, ``None`` if it is gone."""
        host = self._where.get(name)
        return self._here.cpu_time(name) if host is None else host.cpu.get(name)

    def is_stopped(self, name: str) -> bool:
        """Return whether the process `name` is stopped, as last reported by its host."""
        host = self._where.get(name)
        return self._here.is_stopped(name) if host is None else name in host.stopped

    def end_stopped_guard(self) -> None:
        """Kill this host's guard if it stays stopped; agents do this for theirs."""
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
        """Handle an event of a host's agent."""
        if event["event"] == "started":
            self._here.note_start(event["name"], event["pid"])
        elif event["event"] == "exited" and self._where.get(event["name"]) is host:
            self._note_exit(event["name"], event["status"])

    def lose(self, host: RemoteHost) -> None:
        """Record that a host is lost, with all of its processes."""
        for name, where in list(self._where.items()):
            if where is host and name not in self.statuses:
                self._note_exit(name, -signal.SIGKILL)

    def _note_exit(self, name: str, status: int) -> None:
        self._here.note_exit(name, status)
        self._on_exit(name, status)

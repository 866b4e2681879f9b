"""The kernel's side of the guard: start processes, signal them, and learn at once when one ends."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from . import guard
from .abstract_processes import Processes, StartMethod
from .successor import GuardProcess, Successor

# For a guard that does not answer; the guard itself kills its children after a grace period.
STOP_LIMIT = timedelta(seconds=guard.GRACE + guard.GIVE_UP + 2)
LOG = "guard.log"
_ALL: weakref.WeakSet[GuardedProcesses] = weakref.WeakSet()  # all of this kernel
_TAKING = threading.Lock()


class GuardedProcesses(Processes):
    """Processes below a guard, by name.

    Parameters
    ----------
    folders : sequence of Path
        Removed by the guard at the end; the first one is its working directory.
    on_exit : callable
        Called with a name and an exit status (negative: the signal) on a separate thread, once the process has ended.
    on_start : callable
        Called on that thread with a name and a pid, once the process exists.

    Attributes
    ----------
    pids : dict of str to int
        Pid of every process that was started.
    statuses : dict of str to int
        Exit status of every process that has ended.
    """

    def __init__(
        self, folders: Sequence[Path], on_exit: Callable[[str, int], None], on_start: Callable[[str, int], None] = lambda _name, _pid: None
    ) -> None:
        self.pids: dict[str, int] = {}
        self.statuses: dict[str, int] = {}
        self._on_exit, self._on_start = on_exit, on_start
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._kernel = os.getpid()
        self._guard: subprocess.Popen[bytes] | GuardProcess
        self._successor: Successor | None
        self._guard, self._successor = _promoted(folders) or _launched(folders)
        if self._successor is not None:
            self._successor.theirs.close()
        _ALL.add(self)
        self._listener = threading.Thread(target=self._listen, name="dtrain-guard", daemon=True)
        self._listener.start()

    @property
    def guard_pid(self) -> int:
        """Pid of the guard."""
        return self._guard.pid

    @property
    def guard_alive(self) -> bool:
        """Whether the guard is running. If it is not, its processes are not either."""
        return self._guard.poll() is None

    def cpu_time(self, name: str) -> float | None:
        """Return the CPU seconds of the process `name`, ``None`` if it is gone."""
        try:
            times = psutil.Process(self.pids[name]).cpu_times()
        except (psutil.Error, KeyError):
            return None
        return float(times.user + times.system)

    def is_stopped(self, name: str) -> bool:
        """Return whether the process `name` is stopped (SIGSTOP)."""
        try:
            return bool(psutil.Process(self.pids[name]).status() == psutil.STATUS_STOPPED)
        except (psutil.Error, KeyError):
            return False

    def end_stopped_guard(self) -> None:
        """Kill a guard that stays stopped (SIGSTOP), as it could not report deaths. Its processes end with it."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._guard.pid)
            if process.status() == psutil.STATUS_STOPPED:
                time.sleep(guard.PATIENCE)  # it may be stopped only briefly
                if process.status() == psutil.STATUS_STOPPED:
                    self._guard.kill()
                    self._guard.wait()

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        how: StartMethod = "exec",
    ) -> None:
        """Request a process; its pid appears in `pids`. ``guard.py`` explains `how`."""
        if how == "template" and self._successor is not None:
            self._successor.note(argv, env)
        self._tell({"do": "start", "name": name, "argv": list(argv), "env": dict(env), "cwd": str(cwd), "log": str(log), "how": how})

    def signal(self, name: str, number: int) -> None:
        """Send a signal to the process `name`; ignored if it is gone."""
        self._tell({"do": "signal", "name": name, "signal": int(number)})

    def forget(self, name: str) -> None:
        """Forget the ended process `name`."""
        with self._changed:
            self.statuses.pop(name, None)
            self.pids.pop(name, None)

    def wait_change(self, limit: timedelta) -> None:
        """Wait until a process starts or ends, at most `limit`."""
        with self._changed:
            self._changed.wait(limit.total_seconds())

    def stop(self) -> None:
        """End all processes and wait until they are gone. Does nothing when called again, or in a fork of the kernel."""
        if os.getpid() != self._kernel:
            return
        self.end_stopped_guard()
        # Also sent as a message: a process forked by the kernel (a loader worker) may keep the pipe open.
        self._tell({"do": "stop"})
        with contextlib.suppress(OSError):
            if self._guard.stdin is not None:
                self._guard.stdin.close()
        try:
            self._guard.wait(STOP_LIMIT.total_seconds())
        except subprocess.TimeoutExpired:
            self._guard.kill()  # its children die with it
            self._guard.wait()
        if (successor := self.take_successor()) is not None:
            successor.end()
        if threading.current_thread() is not self._listener:
            self._listener.join(timeout=1.0)

    def note_start(self, name: str, pid: int) -> None:
        """Record the start of the process `name`, and wake threads in :meth:`wait_change`."""
        with self._changed:
            self.pids[name] = pid
            self._changed.notify_all()

    def note_exit(self, name: str, status: int) -> None:
        """Record the end of the process `name`, and wake threads in :meth:`wait_change`."""
        with self._changed:
            self.statuses[name] = status
            self._changed.notify_all()

    def take_successor(self) -> Successor | None:
        """Return the process that can become the next guard, if any; the caller has to end it."""
        with _TAKING:
            successor, self._successor = self._successor, None
        return successor

    def _tell(self, request: dict[str, Any]) -> None:
        assert self._guard.stdin is not None
        with self._writing, contextlib.suppress(OSError, ValueError):  # the guard is gone or stopping
            self._guard.stdin.write(json.dumps(request).encode() + b"\n")
            self._guard.stdin.flush()

    def _listen(self) -> None:
        assert self._guard.stdout is not None
        with self._guard.stdout as lines:
            for line in lines:
                event = json.loads(line)
                name = event["name"]
                if event["event"] == "started":
                    self.note_start(name, event["pid"])
                    self._on_start(name, event["pid"])
                else:
                    self.note_exit(name, event["status"])
                    self._on_exit(name, event["status"])
        with self._changed:
            self._changed.notify_all()


def _launched(folders: Sequence[Path]) -> tuple[subprocess.Popen[bytes], Successor | None]:
    """Start a guard."""
    successor = Successor.make()
    line = [] if successor is None else [successor.theirs.fileno()]
    with (folders[0] / LOG).open("wb") as log:
        # -I and -S: import nothing from the user's environment. New session: Jupyter interrupts and kills the kernel's
        # whole process group.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), "".join(map(str, line)), *map(str, folders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=folders[0],
            start_new_session=True,
            pass_fds=line,
        )
    return process, successor


def _promoted(folders: Sequence[Path]) -> tuple[GuardProcess, Successor] | None:
    """Promote the template of a guard that is gone, if there is one, as it has torch imported; return it as the new guard."""
    for other in list(_ALL):
        if not other.guard_alive and (left := other.take_successor()) is not None and (following := Successor.make()) is not None:
            if (promoted := left.promote(folders, folders[0] / LOG, following)) is not None:
                left.close()
                return promoted, following
            following.close()  # a fork that was made nevertheless ends with its connection
            left.end()
    return None

"""The kernel's side of the guard: start processes, signal them, know at once when one is gone."""

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

# The guard itself kills after a grace; this is for one that does not answer.
STOP_LIMIT = timedelta(seconds=guard.GRACE + guard.GIVE_UP + 2)
LOG = "guard.log"
_ALL: weakref.WeakSet[GuardedProcesses] = weakref.WeakSet()  # those of this kernel
_TAKING = threading.Lock()


class GuardedProcesses(Processes):
    """Processes below a guard, by name.

    Parameters
    ----------
    folders : sequence of Path
        Removed by the guard at the end; the first becomes its working directory.
    on_exit : callable
        Called with a name and an exit status (negative: the signal) from a thread of its own, once the process has ended.
    on_start : callable
        Called on that thread with a name and a pid, once the process is there.

    Attributes
    ----------
    pids : dict
        Pid of every process that was started.
    statuses : dict
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
        """Whether the guard is running; when it is not, its processes are not either."""
        return self._guard.poll() is None

    def cpu_time(self, name: str) -> float | None:
        """Return the seconds that the process `name` has computed, ``None`` if it is gone."""
        try:
            times = psutil.Process(self.pids[name]).cpu_times()
        except (psutil.Error, KeyError):
            return None
        return float(times.user + times.system)

    def is_stopped(self, name: str) -> bool:
        """Return whether the process `name` is stopped, as by a SIGSTOP."""
        try:
            return bool(psutil.Process(self.pids[name]).status() == psutil.STATUS_STOPPED)
        except (psutil.Error, KeyError):
            return False

    def end_stopped_guard(self) -> None:
        """Kill a guard that is stopped, as by a SIGSTOP, and does not go on: it would tell of no death. Its processes end with it."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._guard.pid)
            if process.status() == psutil.STATUS_STOPPED:
                time.sleep(guard.PATIENCE)  # it may be no more than a moment
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
        """Ask for a process; its pid appears in `pids`. `how` is explained in ``guard.py``."""
        if how == "template" and self._successor is not None:
            self._successor.note(argv, env)
        self._tell({"do": "start", "name": name, "argv": list(argv), "env": dict(env), "cwd": str(cwd), "log": str(log), "how": how})

    def signal(self, name: str, number: int) -> None:
        """Send a signal to the process `name`; nothing happens if it is gone."""
        self._tell({"do": "signal", "name": name, "signal": int(number)})

    def forget(self, name: str) -> None:
        """Drop what is known of the process `name`, which has ended."""
        with self._changed:
            self.statuses.pop(name, None)
            self.pids.pop(name, None)

    def wait_change(self, limit: timedelta) -> None:
        """Wait until a process starts or ends, at most `limit`."""
        with self._changed:
            self._changed.wait(limit.total_seconds())

    def stop(self) -> None:
        """End all processes and wait until they are gone. Calling it again, or in a fork of the kernel, does nothing."""
        if os.getpid() != self._kernel:
            return
        self.end_stopped_guard()
        # Said in words as well: a process that the kernel forked (a loader's worker) may hold the pipe open.
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
        """Know that the process `name` is there, and let who waits for a change look."""
        with self._changed:
            self.pids[name] = pid
            self._changed.notify_all()

    def note_exit(self, name: str, status: int) -> None:
        """Know that the process `name` has ended, and let who waits for a change look."""
        with self._changed:
            self.statuses[name] = status
            self._changed.notify_all()

    def take_successor(self) -> Successor | None:
        """Return what can be the next guard once this one is gone; whoever takes it has to end it."""
        with _TAKING:
            successor, self._successor = self._successor, None
        return successor

    def _tell(self, request: dict[str, Any]) -> None:
        assert self._guard.stdin is not None
        with self._writing, contextlib.suppress(OSError, ValueError):  # the guard is gone, or was told to go
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
        # -I and -S: nothing of the user's environment is imported. A session of its own: Jupyter interrupts and
        # kills a kernel's whole process group.
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
    """Return a guard that was the template of one that is gone, if there is any: PyTorch is imported there."""
    for other in list(_ALL):
        if not other.guard_alive and (left := other.take_successor()) is not None and (following := Successor.make()) is not None:
            if (promoted := left.promote(folders, folders[0] / LOG, following)) is not None:
                left.close()
                return promoted, following
            following.close()  # a fork that has been made all the same ends with its line
            left.end()
    return None

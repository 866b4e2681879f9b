"""The kernel's side of the template that may become the next guard (``promotion.py`` is the template's side)."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, BinaryIO

from .launch_config import READ_ONCE, WHATEVER
from .promotion import receive

PROMOTION_LIMIT = timedelta(seconds=2)
"""Time for the promotion, which takes milliseconds; after it a new guard is started instead."""
END_LIMIT = timedelta(seconds=2)
"""Time for the system to end a killed process."""
MESSAGE_SIZE = 32  # bytes of a pid


class GuardProcess:
    """A guard that is not this process's child, with the part of the interface of ``subprocess.Popen`` that is used.

    Parameters
    ----------
    pid : int
    pidfd : int
        Of the same process, so that signals cannot reach another process that reuses the pid.
    stdin, stdout : BinaryIO
        Requests to it, and its events.
    """

    def __init__(self, pid: int, pidfd: int, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self.pid, self._pidfd, self.stdin, self.stdout = pid, pidfd, stdin, stdout

    def poll(self) -> int | None:
        """Return a number once it has ended."""
        return 0 if _has_ended(self._pidfd) else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended."""
        if not _has_ended(self._pidfd, timeout):
            raise TimeoutExpired("guard", timeout or 0.0)
        return 0

    def kill(self) -> None:
        """Kill it."""
        _kill(self._pidfd)

    def __del__(self) -> None:
        os.close(self._pidfd)


class Successor:
    """A connection to the template, which may start later or not at all.

    Attributes
    ----------
    theirs : socket.socket
        The template's end of the socket pair.
    """

    def __init__(self) -> None:
        # Messages keep their boundaries, and a socket pair has no name by which others could find it.
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._started_with: dict[str, Any] | None = None
        self._kernel = os.getpid()

    @classmethod
    def make(cls) -> Successor | None:
        """Return a connection if the system supports it; otherwise everything ends with its guard."""
        has_all = sys.platform == "linux" and hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")
        return cls() if has_all else None

    def note(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Record how the template is started."""
        self._started_with = {"argv": list(argv), "env": dict(env)}

    def promote(self, folders: Sequence[Path], log: Path, following: Successor) -> GuardProcess | None:
        """Make the template the guard of a cluster with these folders, and of the next template with the connection `following`.

        Returns
        -------
        GuardProcess or None
            ``None``: there is no template, or it did not answer and was killed.
        """
        if self._kernel != os.getpid() or self._started_with is None or (process := self._process()) is None:
            return None  # a fork of the kernel has inherited the connection, and must not read from it
        pid, pidfd = process
        message = {"kernel": os.getpid(), "folders": [*map(str, folders)], "read_once": READ_ONCE, "whatever": WHATEVER}
        message |= self._started_with
        (requests, ours), (events, theirs), said = os.pipe(), os.pipe(), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        guard = GuardProcess(pid, pidfd, open(ours, "wb"), open(events, "rb", buffering=0))  # noqa: PTH123,SIM115
        try:
            socket.send_fds(self._ours, [json.dumps(message).encode()], [requests, theirs, said, following.theirs.fileno()])
        except OSError:
            pass  # it has just ended
        finally:
            for end in (requests, theirs, said):
                os.close(end)
        if select.select([events], [], [], PROMOTION_LIMIT.total_seconds())[0] and guard.stdout.readline():
            return guard
        guard.kill()
        guard.stdin.close()
        guard.stdout.close()
        return None

    def close(self) -> None:
        """Close the connection."""
        self._ours.close()
        self.theirs.close()

    def end(self) -> None:
        """Kill the template, if there is one, and wait until it is gone."""
        if self._kernel != os.getpid():
            return
        process = self._process()
        self.close()  # a template that has not sent its pid yet ends with the connection
        if process is not None:
            _kill(process[1])
            _has_ended(process[1], END_LIMIT.total_seconds())
            os.close(process[1])

    def _process(self) -> tuple[int, int] | None:
        """Return pid and pidfd of the template, once it has sent them; until then it dies with its guard."""
        found = None
        with suppress(OSError):  # no more messages for now
            while True:
                message, handles = receive(self._ours, MESSAGE_SIZE, 1, socket.MSG_DONTWAIT)
                if not message:
                    break
                if found is not None:
                    os.close(found[1])  # it was replaced by another
                found = int(message), handles[0]
        return found


def _has_ended(pidfd: int, seconds: float | None = 0.0) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))


def _kill(pidfd: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)

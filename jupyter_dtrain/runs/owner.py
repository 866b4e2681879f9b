"""Identify the process that owns a run, to find out whether it has died."""

from __future__ import annotations

import functools
import os
import socket
import time
from dataclasses import dataclass

import psutil

SILENCE = 3600.0
"""Seconds without a sign of life after which a process on another host counts as dead, as it cannot be checked."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that runs a run.

    Attributes
    ----------
    host : str
        Name of its host.
    pid : int
        Its process id, which may be reused later.
    created : float
        Its creation time in seconds since the epoch; unique together with the pid.
    """

    host: str
    pid: int
    created: float

    @classmethod
    def this_process(cls) -> Owner:
        """Return the current process as an owner."""
        return cls(host=socket.gethostname(), pid=os.getpid(), created=_created(os.getpid()))

    def is_gone(self, *, seen: float) -> bool:
        """Return whether the process has ended; `seen` is its last sign of life, for processes of other hosts."""
        if self.host != socket.gethostname():
            return time.time() - seen > SILENCE
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:  # dead, but its parent has not waited for it
                return True
            return abs(process.create_time() - self.created) > 2  # some systems derive the time from a clock that is adjusted
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False


@functools.cache
def _created(pid: int) -> float:
    return float(psutil.Process(pid).create_time())

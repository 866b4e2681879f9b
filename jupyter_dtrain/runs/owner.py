"""Whose run it is: a run whose kernel has died cannot say so itself."""

from __future__ import annotations

import functools
import os
import socket
import time
from dataclasses import dataclass

import psutil

SILENCE = 3600.0
"""Seconds without a sign of life after which a process on another host, which cannot be asked, is given up."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that a run runs in.

    Attributes
    ----------
    host : str
        Its host's name.
    pid : int
        Its id there, which another process may have one day.
    created : float
        When it was created, in seconds since the epoch: with the id, this is unique.
    """

    host: str
    pid: int
    created: float

    @classmethod
    def this_process(cls) -> Owner:
        """Return the process that this is called in."""
        return cls(host=socket.gethostname(), pid=os.getpid(), created=_created(os.getpid()))

    def is_gone(self, *, seen: float) -> bool:
        """Return whether it has ended; `seen` is its last sign of life, for where it cannot be asked."""
        if self.host != socket.gethostname():
            return time.time() - seen > SILENCE
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:  # dead, and nobody has asked after it yet
                return True
            return abs(process.create_time() - self.created) > 2  # some systems derive it from a clock that is adjusted
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False


@functools.cache
def _created(pid: int) -> float:
    return float(psutil.Process(pid).create_time())

"""A file whose memory is written over, because nobody has it any more: new memory for one takes Linux several times as long as the copy."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path


def open_unused(file: Path) -> int | None:
    """Return a descriptor to write over `file` by, if no process has it open or mapped, this one neither, and it has no other name.

    That is what Linux grants a lease for (``F_SETLEASE`` in :manpage:`fcntl(2)`), which is given back at once: call this when no
    other process knows the file's name. ``None`` also where a system or a file system knows of no leases.
    """
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        is_unused = os.fstat(descriptor).st_nlink == 1
        # Should somebody open it just now all the same, a signal says so: one that is not heeded, as the usual one ends the process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        is_unused = False
    if not is_unused:
        os.close(descriptor)
        return None
    return descriptor

"""The process tree below a process, and prctl. Imported by the guard, so it uses the standard library only."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl() -> Callable[[int, int], None]:
    """Return Linux's prctl, and on other systems a function that does nothing."""
    if sys.platform != "linux":
        return lambda _option, _value: None
    import ctypes

    libc = ctypes.CDLL(None)
    return lambda option, value: libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def parents() -> dict[int, int]:
    """Return the parent pid of every running process, by pid."""
    found = {}
    if os.path.isdir("/proc/self"):  # noqa: PTH112 - pathlib takes longer to import than the rest of this file
        for entry in os.listdir("/proc"):  # noqa: PTH208
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/stat") as file:  # noqa: PTH123
                        # The command name is in parentheses and may contain blanks and parentheses.
                        found[int(entry)] = int(file.read().rpartition(")")[2].split()[1])
                except OSError:
                    pass  # it has ended meanwhile
    else:
        with os.popen("ps -axo pid=,ppid=") as lines:
            for line in lines:
                pid, parent = line.split()
                found[int(pid)] = int(parent)
    return found


def descendants(root: int) -> list[int]:
    """Return the pids of all processes below `root`."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    left = [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def end_all_below(reap: Callable[[], object], deadline: float) -> None:
    """Kill all processes below this one until there are none; `reap` collects its ended children."""
    # Repeatedly: children of a killed process become this one's, and new processes may have been forked.
    while (below := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it is gone, or its pid belongs to another user now
        reap()
        time.sleep(0.005)

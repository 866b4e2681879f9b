"""Query other processes of this machine."""

from __future__ import annotations

from pathlib import Path


def start_of(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, which tells it from a later one with its pid; empty if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_running(pid: int) -> bool:
    """Return whether a process with this pid is running, of any user; the pid may have been reused.

    Zombies do not count as running: in a container whose first process does not reap them, they stay for ever.
    """
    if Path("/proc/self/stat").exists():  # avoids importing psutil in `%load_ext`, which looks for leftovers of dead kernels
        try:
            state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state not in ("Z", "X")
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True

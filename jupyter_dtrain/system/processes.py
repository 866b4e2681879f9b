"""Other processes of this machine."""

from __future__ import annotations

from pathlib import Path


def start_of(pid: int) -> str:
    """Return when a process was started, by the system's own clock: another of the same pid began later. Empty where it is not known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_running(pid: int) -> bool:
    """Return whether a process with this pid is at work, whose ever it is: it may be another by now.

    One that has ended counts as such although nobody has asked after it: in a container whose first process does not, it stays for ever.
    """
    if Path("/proc/self/stat").exists():  # `%load_ext` looks for what dead kernels have left, and is to import nothing heavy for that
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

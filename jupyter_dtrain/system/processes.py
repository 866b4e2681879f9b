"""Other processes of this machine."""

from __future__ import annotations

import psutil


def is_running(pid: int) -> bool:
    """Return whether a process with this pid is at work, whose ever it is: it may be another by now.

    One that has ended counts as such although nobody has asked after it: in a container whose first process does not, it stays for ever.
    """
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True

"""Other processes of this machine."""

from __future__ import annotations

import os


def is_running(pid: int) -> bool:
    """Return whether there is a process with this pid, whose ever it is: it may be another by now."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

"""The two folders of a cluster: a private one for connection files and logs, and one for large buffers.

Both are the cluster's own, so clusters of several kernels never meet and nothing is written into the user's IPython
profile. The guard removes them; what a guard and a kernel leave that were killed at the same moment, the next
cluster of the same user removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..system.resources import OVERFLOW
from .crash_log import NUM_LINES

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_AT_LEAST = 1 << 30  # bytes free; containers often come with 64 MiB, where a write beyond it kills the writer
SETTLED = 600.0  # seconds; a younger folder may be waiting for its guard to lock it


class Folders:
    """Makes the folders of one cluster, each with mode 0700.

    Attributes
    ----------
    private : Path
        Connection files, IPython's profile, logs.
    blobs : Path
        Large buffers that the engines of this host share; in shared memory where there is enough of it, from which a link leads to
        a folder on a disk for those that find no room there.
    """

    def __init__(self) -> None:
        prefix = _prefix()
        self.private = Path(tempfile.mkdtemp(prefix=prefix))
        base = _roomy_shared_memory()
        self.blobs = self.private / "blobs"
        if base is None:
            self.blobs.mkdir(mode=0o700)
        else:
            self.blobs = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
            overflow = self.private / "overflow"
            overflow.mkdir(mode=0o700)
            (self.blobs / OVERFLOW).symlink_to(overflow)
        self.profile = self.private / "profile"
        self.logs = self.private / "log"
        for folder in (self.profile, self.logs):
            folder.mkdir(mode=0o700)

    @property
    def are_there(self) -> bool:
        """Whether nobody has removed them."""
        return self.profile.is_dir() and self.logs.is_dir() and self.blobs.is_dir()

    def log_of(self, name: str) -> Path:
        """Return the log file of the process `name`."""
        return self.logs / f"{name}.log"

    def log_tail(self, name: str, of: Callable[[str], str] = lambda text: "\n".join(text.splitlines()[-NUM_LINES:])) -> str:
        """Return the last lines that the process `name` wrote, or what is told `of` its log, indented, or an empty string."""
        try:
            text = self.log_of(name).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(f"    {line}" for line in of(text).splitlines())

    def hold(self) -> list[int]:
        """Say that this process uses the folders, as a guard does, until the files that are returned are closed."""
        handles = [os.open(folder, os.O_RDONLY) for folder in (self.private, self.blobs)]
        for handle in handles:
            fcntl.flock(handle, fcntl.LOCK_EX)
        return handles

    def remove(self) -> None:
        """Remove both folders, if they are still there."""
        for folder in (self.blobs, self.private):
            shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove the folders of this user's clusters whose guard is gone."""
    for base in {Path(tempfile.gettempdir()), SHARED_MEMORY}:
        for folder in base.glob(f"{_prefix()}*"):
            try:
                if folder.stat().st_uid == os.getuid() and folder.stat().st_mtime < time.time() - SETTLED and not _guarded(folder):
                    shutil.rmtree(folder, ignore_errors=True)
            except OSError:
                continue  # someone else was quicker


def _guarded(folder: Path) -> bool:
    """Whether a guard holds its lock on `folder`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _prefix() -> str:
    return f"jupyter-dtrain-{os.getuid()}-"


def _roomy_shared_memory() -> Path | None:
    try:
        space = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    roomy = space.f_bavail * space.f_frsize >= SHARED_MEMORY_AT_LEAST
    return SHARED_MEMORY if roomy and os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None

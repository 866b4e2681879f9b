"""The folders of a cluster: a private one for connection files, sockets and logs, and one for large buffers.

They are the cluster's own, so clusters of several kernels never meet and nothing is written into the user's IPython
profile. The guard removes them; what a guard and a kernel leave that were killed at the same moment, the next
kernel of the same user that loads the extension removes, or starts a cluster.

Their mode, 0700, is what keeps other users out of the Unix sockets and the rendezvous files that lie in them. A socket's path may
have 107 bytes on Linux and 103 on macOS, and TMPDIR is longer than that on some machines: then the sockets have a folder of their own, in
a place with a short name.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import ClusterError
from ..system.processes import is_running, start_of
from ..system.resources import OVERFLOW
from .crash_log import NUM_LINES

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_AT_LEAST = 1 << 30  # bytes free; containers often come with 64 MiB, where a write beyond it kills the writer
SETTLED = 600.0  # seconds; a younger folder of nobody knows whom may be waiting for its guard to lock it
OWNER = "owner"  # name of a file: the pid of the process that has made the folders, and when it was started
MAX_SOCKET_PATH = 100  # bytes, a little less than any system's `sun_path` has room for
MAX_SOCKET_NAME = 20  # bytes; multiprocessing's take 17
_SHORT = [Path(base) for base in (str(SHARED_MEMORY), os.environ.get("XDG_RUNTIME_DIR"), "/tmp", "/var/tmp") if base]
"""Where the sockets' folder may be instead."""


class Folders:
    """Makes the folders of one cluster, each with mode 0700.

    Attributes
    ----------
    private : Path
        Connection files, IPython's profile, logs.
    blobs : Path
        Large buffers that the engines of this host share; in shared memory where there is enough of it, from which a link leads to
        a folder on a disk for those that find no room there.
    sockets : Path
        Unix sockets, whose names have `MAX_SOCKET_NAME` bytes at most.
    rendezvous : Path
        Where ranks meet, by file.
    """

    def __init__(self) -> None:
        prefix = _prefix()
        self.private = Path(tempfile.mkdtemp(prefix=prefix))
        note_owner(self.private)
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
        self.rendezvous = self.private / "rendezvous"
        self.sockets = self.private / "s"
        for folder in (self.profile, self.logs, self.rendezvous, self.sockets):
            folder.mkdir(mode=0o700)
        if not _is_short(self.sockets):
            self.sockets = _short_folder(prefix)
            note_owner(self.sockets)

    @property
    def all(self) -> list[Path]:
        """Those that lie in no other, to be held and removed; the private one comes first."""
        found = [self.private, self.blobs, self.sockets]
        return [folder for folder in found if folder == self.private or not folder.is_relative_to(self.private)]

    @property
    def are_there(self) -> bool:
        """Whether nobody has removed them."""
        return all(folder.is_dir() for folder in (self.profile, self.logs, self.blobs, self.rendezvous, self.sockets))

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

    def acquire(self) -> list[int]:
        """Say that this process uses the folders, as a guard does, until the files that are returned are closed."""
        handles = [os.open(folder, os.O_RDONLY) for folder in self.all]
        for handle in handles:
            fcntl.flock(handle, fcntl.LOCK_EX)
        return handles

    def remove(self) -> None:
        """Remove them, if they are still there."""
        for folder in reversed(self.all):
            shutil.rmtree(folder, ignore_errors=True)


def note_owner(folder: Path) -> None:
    """Say in `folder` that this process has made it: once that has ended, it is swept away."""
    (folder / OWNER).write_text(f"{os.getpid()} {start_of(os.getpid())}")


def sweep() -> None:
    """Remove the folders of this user's clusters whose guard is gone, and with it the kernel, which may need what is there."""
    for base in {Path(tempfile.gettempdir()), SHARED_MEMORY, *_SHORT}:
        for folder in base.glob(f"{_prefix()}*"):
            try:
                if folder.lstat().st_uid == os.getuid() and _is_left(folder) and not _guarded(folder):
                    shutil.rmtree(folder, ignore_errors=True)
            except OSError:
                continue  # someone else was quicker


def remove_unguarded(folder: Path) -> None:
    """Remove a folder of buffers, and the private one that it may lie in, unless a guard holds it."""
    own = next((part for part in (*reversed(folder.parents), folder) if part.name.startswith(_prefix())), folder)
    try:
        if not _guarded(own):
            shutil.rmtree(own, ignore_errors=True)
    except OSError:
        return  # it is gone


def _is_left(folder: Path) -> bool:
    """Return whether the process that has made `folder` has ended, or, where nobody knows which that was, long enough ago it was made."""
    # What lies in shared memory leads to the private folder, whose disk takes what finds no room there.
    overflow = folder / OVERFLOW
    private = overflow.readlink().parent if overflow.is_symlink() else folder
    if not private.exists():
        return True
    try:
        owner, _, start = (private / OWNER).read_text().partition(" ")
        is_there = is_running(int(owner))
    except (OSError, ValueError):
        return folder.stat().st_mtime < time.time() - SETTLED
    return not is_there or (start != "" and start != start_of(int(owner)))  # a host was switched off, and counts from 1 again


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


def _is_short(folder: Path) -> bool:
    return len(os.fsencode(folder)) + 1 + MAX_SOCKET_NAME <= MAX_SOCKET_PATH


def _short_folder(prefix: str) -> Path:
    """Make a folder whose path leaves room for a socket's name."""
    for base in _SHORT:
        try:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        except OSError:
            continue
    raise ClusterError(
        f"The folder for temporary files has too long a name for sockets, and none of {', '.join(map(str, _SHORT))} can be written: "
        "set TMPDIR to a folder of fewer than 50 characters."
    )


def _prefix() -> str:
    return f"jupyter-dtrain-{os.getuid()}-"


def _roomy_shared_memory() -> Path | None:
    try:
        space = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    roomy = space.f_bavail * space.f_frsize >= SHARED_MEMORY_AT_LEAST
    return SHARED_MEMORY if roomy and os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None

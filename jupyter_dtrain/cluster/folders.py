"""The folders of a cluster: a private one for connection files, sockets and logs, and one for large buffers.

Each cluster has its own folders, so clusters of several kernels do not interfere, and nothing is written into the user's IPython profile.
The guard removes them. If guard and kernel are killed together, the user's next kernel that loads the extension or starts a cluster
removes them.

Mode 0700 keeps other users out of the Unix sockets and rendezvous files. A socket's path may have 107 bytes on Linux and 103 on macOS. If
TMPDIR is too long for that, the sockets get a folder of their own in a place with a short name.
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
SHARED_MEMORY_AT_LEAST = 1 << 30  # free bytes; containers often have 64 MiB, and a write beyond that kills the writer
SETTLED = 600.0  # seconds; a younger folder without an owner may be waiting for its guard to lock it
OWNER = "owner"  # name of a file with the pid and start time of the process that made the folders
MAX_SOCKET_PATH = 100  # bytes, slightly less than `sun_path` holds on any system
MAX_SOCKET_NAME = 20  # bytes; those of multiprocessing have 17
_SHORT = [Path(base) for base in (str(SHARED_MEMORY), os.environ.get("XDG_RUNTIME_DIR"), "/tmp", "/var/tmp") if base]
"""Alternative places for the sockets' folder."""


class Folders:
    """Create the folders of one cluster, each with mode 0700.

    Attributes
    ----------
    private : Path
        Connection files, IPython's profile, logs.
    blobs : Path
        Large buffers that the engines of this host share: in shared memory if there is enough, with a link to a folder on disk for
        buffers that find no room.
    sockets : Path
        Unix sockets, whose names have at most `MAX_SOCKET_NAME` bytes.
    rendezvous : Path
        Files by which ranks meet.
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
        """The top-level folders, to be locked and removed; the private one comes first."""
        found = [self.private, self.blobs, self.sockets]
        return [folder for folder in found if folder == self.private or not folder.is_relative_to(self.private)]

    @property
    def are_there(self) -> bool:
        """Whether all folders still exist."""
        return all(folder.is_dir() for folder in (self.profile, self.logs, self.blobs, self.rendezvous, self.sockets))

    def log_of(self, name: str) -> Path:
        """Return the log file of the process `name`."""
        return self.logs / f"{name}.log"

    def log_tail(self, name: str, of: Callable[[str], str] = lambda text: "\n".join(text.splitlines()[-NUM_LINES:])) -> str:
        """Return the last lines of the log of `name`, or the result of `of` for it, indented; may be empty."""
        try:
            text = self.log_of(name).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(f"    {line}" for line in of(text).splitlines())

    def acquire(self) -> list[int]:
        """Lock the folders for this process, as a guard does, until the returned files are closed."""
        handles = [os.open(folder, os.O_RDONLY) for folder in self.all]
        for handle in handles:
            fcntl.flock(handle, fcntl.LOCK_EX)
        return handles

    def remove(self) -> None:
        """Remove the folders, if they still exist."""
        for folder in reversed(self.all):
            shutil.rmtree(folder, ignore_errors=True)


def note_owner(folder: Path) -> None:
    """Record in `folder` that this process has made it; it is swept once that has ended."""
    (folder / OWNER).write_text(f"{os.getpid()} {start_of(os.getpid())}")


def sweep() -> None:
    """Remove the folders of this user's clusters whose guard and kernel are gone."""
    for base in {Path(tempfile.gettempdir()), SHARED_MEMORY, *_SHORT}:
        for folder in base.glob(f"{_prefix()}*"):
            try:
                if folder.lstat().st_uid == os.getuid() and _is_left(folder) and not _guarded(folder):
                    shutil.rmtree(folder, ignore_errors=True)
            except OSError:
                continue  # another process was faster


def remove_unguarded(folder: Path) -> None:
    """Remove a folder of buffers, and the private folder around it, unless a guard holds its lock."""
    own = next((part for part in (*reversed(folder.parents), folder) if part.name.startswith(_prefix())), folder)
    try:
        if not _guarded(own):
            shutil.rmtree(own, ignore_errors=True)
    except OSError:
        return  # it is gone


def _is_left(folder: Path) -> bool:
    """Return whether the process that made `folder` has ended; if unknown, whether the folder is old enough."""
    # A folder in shared memory has a link to the overflow folder in the private one.
    overflow = folder / OVERFLOW
    private = overflow.readlink().parent if overflow.is_symlink() else folder
    if not private.exists():
        return True
    try:
        owner, _, start = (private / OWNER).read_text().partition(" ")
        is_there = is_running(int(owner))
    except (OSError, ValueError):
        return folder.stat().st_mtime < time.time() - SETTLED
    return not is_there or (start != "" and start != start_of(int(owner)))  # pids restart after a reboot


def _guarded(folder: Path) -> bool:
    """Return whether a guard holds its lock on `folder`."""
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
    """Create a folder whose path leaves room for a socket's name."""
    for base in _SHORT:
        try:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        except OSError:
            continue
    raise ClusterError(
        f"The path of the folder for temporary files is too long for Unix sockets, and none of {', '.join(map(str, _SHORT))} is writable. "
        "Set TMPDIR to a folder whose path has fewer than 50 characters."
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

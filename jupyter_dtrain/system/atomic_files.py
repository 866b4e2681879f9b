"""Write files and folders atomically: they are complete or absent."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Reusing an unused file: Linux takes several times as long to allocate its pages as to copy into them.


def open_unused(file: Path) -> int | None:
    """Return a descriptor for overwriting `file`, if no process, including this one, has it open or mapped and it has no other name.

    Linux grants a lease (``F_SETLEASE`` in :manpage:`fcntl(2)`) under just these conditions; the lease is released at once. Call this when
    no other process knows the file's name. ``None`` also where the system or the file system has no leases.
    """
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        is_unused = os.fstat(descriptor).st_nlink == 1
        # If another process opens the file just now, a signal is sent. SIGURG is ignored by default; the default SIGIO would end the
        # process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        is_unused = False
    if not is_unused:
        os.close(descriptor)
        return None
    return descriptor


BLOCK = 1 << 25  # bytes of one write
UNFINISHED = ".part-"  # prefix of the names of unfinished files


def write_whole(
    path: Path,
    data: bytes | memoryview,
    *,
    durable: bool = False,
    on_written: Callable[[int], None] = lambda _: None,
    over: Path | None = None,
) -> None:
    """Write a file of mode 0600 atomically, with `durable` also in case of a crash of the machine.

    Parameters
    ----------
    on_written : callable
        Called with the number of bytes of each block that was written.
    over : Path, optional
        An obsolete file in the same folder; its pages are reused if no process has it open.
    """
    handle, name = _unfinished(path.parent, over)
    try:
        with os.fdopen(handle, "wb") as file:
            for start in range(0, memoryview(data).nbytes, BLOCK):
                on_written(file.write(memoryview(data).cast("B")[start : start + BLOCK]))
            file.truncate()
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _unfinished(folder: Path, over: Path | None) -> tuple[int, str]:
    """Return a descriptor and the name of a file to write into: `over` if it is unused, else a new one."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=UNFINISHED)
    with suppress(FileNotFoundError):
        if over is not None:
            over.replace(name)
            os.close(handle)
            unused = open_unused(Path(name))
            if unused is not None:
                return unused, name
            Path(name).unlink()
            return tempfile.mkstemp(dir=folder, prefix=UNFINISHED)
    return handle, name


def sync_folder(folder: Path) -> None:
    """Sync a folder's names to disk, so that they survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def alone_in(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock `folder` against other callers, in any process; yield whether it is locked, which may be false only without `wait`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_alone = True
        except BlockingIOError:
            is_alone = False
        yield is_alone
    finally:
        os.close(handle)


@contextmanager
def folder_made_whole(folder: Path) -> Iterator[Path]:
    """Yield a folder to write into, which replaces `folder` at the end of the ``with`` block; after an error, `folder` is unchanged."""
    aside, before = (Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder.parent)) for _ in range(2))
    try:
        yield aside
        with suppress(FileNotFoundError):  # `folder` does not exist yet
            folder.rename(before)  # renamed, as a process that died while deleting it would leave neither
        aside.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        if not folder.exists() and any(before.iterdir()):
            before.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(before, ignore_errors=True)

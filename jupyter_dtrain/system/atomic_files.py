"""Files and folders that are there as a whole or not at all."""

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

# A file whose memory is written over, because nobody has it any more: new memory for one takes Linux several times as long as the copy.


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


BLOCK = 1 << 25  # bytes that are written at a time
UNFINISHED = ".part-"  # begins the names of what is being written


def write_whole(
    path: Path,
    data: bytes | memoryview,
    *,
    durable: bool = False,
    on_written: Callable[[int], None] = lambda _: None,
    over: Path | None = None,
) -> None:
    """Write a file of mode 0600 so that it is there as a whole or not at all, with `durable` also after a crash of the machine.

    Parameters
    ----------
    on_written : callable
        Given the number of bytes of each block that was written.
    over : Path, optional
        A file in the same folder that is not needed any more; its memory is used if nobody has it.
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
    """Return a descriptor and the name of a file to write into: `over`, or a new one if somebody has that."""
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
    """Let the names in a folder outlive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def alone_in(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Let nobody else be in `folder` who asks in this way, of this process or another; says whether that is so where it does not `wait`."""
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
    """Give a folder to write into, which takes the place of `folder` at the end of the ``with`` block; after an error all is as it was."""
    aside, before = (Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder.parent)) for _ in range(2))
    try:
        yield aside
        with suppress(FileNotFoundError):  # there is none yet
            folder.rename(before)  # removing it takes time, and a process that dies meanwhile would leave neither
        aside.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        if not folder.exists() and any(before.iterdir()):
            before.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(before, ignore_errors=True)

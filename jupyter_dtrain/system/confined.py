"""Read, list and remove files below an untrusted folder without following a link out of it.

A folder of runs may come from a download, an archive or a colleague, so nothing in it is trusted. Every part of a path below the folder is
opened relative to the one before it (``dir_fd``) with ``O_NOFOLLOW``: what was checked is what is used, even if a link is put in its place
in between. The folder itself may be reached by links, which are its user's. FIFOs, devices and sockets are refused, and opening one never
blocks.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MAX_DEPTH = 64
"""Maximum depth of folders that are removed. Deeper ones may be malicious."""
MAX_TEXT = 1 << 24
"""Maximum bytes of a text file that is read."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_RUN_ID = re.compile(r"[0-9a-z]+(-[0-9a-z]+)*", re.ASCII)
_MAX_RUN_ID = 128


def is_run_id(text: object) -> bool:
    """Return whether `text` is a valid run id, which names the run's folder: ``2026-11-21-153012-digits``."""
    return isinstance(text, str) and len(text) <= _MAX_RUN_ID and _RUN_ID.fullmatch(text) is not None


@contextmanager
def folder_below(base: Path, *parts: str) -> Iterator[int]:
    """Yield a descriptor of a folder below `base`.

    Raises
    ------
    OSError
        It does not exist, or one of `parts` is a link or not a folder.
    """
    handle = os.open(base, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for part in parts:
            inner = os.open(_name(part), _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


@contextmanager
def file_below(base: Path, *parts: str) -> Iterator[int]:
    """Yield a descriptor for reading a regular file below `base`; raise an `OSError` as :func:`folder_below` does."""
    *folders, name = parts
    with folder_below(base, *folders) as folder:
        handle = os.open(_name(name), _FILE, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "It is no regular file", str(base.joinpath(*parts)))
        yield handle
    finally:
        os.close(handle)


def read_below(base: Path, *parts: str, limit: int | None = MAX_TEXT) -> bytes:
    """Return the contents of a regular file below `base`.

    Parameters
    ----------
    limit : int, optional
        Maximum size in bytes; ``None`` for no limit.

    Raises
    ------
    OSError
        It does not exist, is not a regular file, is reached by a link, or is larger.
    """
    with file_below(base, *parts) as handle:
        if limit is not None and os.fstat(handle).st_size > limit:
            raise OSError(errno.EFBIG, "It is larger than anything that we write", str(base.joinpath(*parts)))
        with os.fdopen(os.dup(handle), "rb") as file:
            return file.read() if limit is None else file.read(limit)


def names_below(base: Path, *parts: str) -> list[str]:
    """Return the names in a folder below `base`; empty if it does not exist or is a link."""
    try:
        with folder_below(base, *parts) as folder:
            return os.listdir(folder)  # noqa: PTH208 - of a descriptor
    except OSError:
        return []


def kind_below(base: Path, *parts: str) -> int | None:
    """Return the file type (``stat.S_IFMT``) of a path below `base`, ``None`` if it does not exist or is reached by a link."""
    *folders, name = parts
    try:
        with folder_below(base, *folders) as folder:
            return stat.S_IFMT(os.stat(_name(name), dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return None


def is_file_below(base: Path, *parts: str) -> bool:
    """Return whether a path below `base` is a regular file."""
    return kind_below(base, *parts) == stat.S_IFREG


def is_folder_below(base: Path, *parts: str) -> bool:
    """Return whether a path below `base` is a folder and not a link."""
    return kind_below(base, *parts) == stat.S_IFDIR


def make_folder_below(base: Path, *parts: str) -> Path:
    """Create a folder below `base` and its parents with mode 0700; return it. Raise an `OSError` if a link is in the way."""
    for depth, part in enumerate(parts):
        with folder_below(base, *parts[:depth]) as folder, suppress(FileExistsError):
            os.mkdir(_name(part), 0o700, dir_fd=folder)
    with folder_below(base, *parts):
        return base.joinpath(*parts)


def mark_below(base: Path, *parts: str) -> None:
    """Create an empty file below `base` with mode 0600; do nothing if the name exists."""
    *folders, name = parts
    with folder_below(base, *folders) as folder, suppress(FileExistsError):
        os.close(os.open(_name(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder))


def write_new(path: Path, text: str) -> None:
    """Write a new file with mode 0600; raise a `FileExistsError` if it exists."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


def remove_below(base: Path, *parts: str) -> None:
    """Remove a path below `base`: of a link the link itself, of a folder all its contents. A missing path is no error.

    Raises
    ------
    OSError
        It is reached by a link, another file system is mounted within it, or permission is missing. Nothing is removed if something is
        mounted or folders are deeper than `MAX_DEPTH`.
    """
    *folders, name = parts
    with folder_below(base, *folders) as folder:
        try:
            kind = os.stat(_name(name), dir_fd=folder, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(kind):
                os.unlink(name, dir_fd=folder)
                return
            tree = os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return
        try:
            here = _file_system(folder)
            _check_tree(tree, here, base.joinpath(*parts))
            _empty(tree, here, base.joinpath(*parts))
        finally:
            os.close(tree)
        with suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=folder)  # fails if something was created there meanwhile


def _name(part: str) -> str:
    if not part or part in (".", "..") or "/" in part or "\0" in part:
        raise OSError(errno.EINVAL, "It is no name", part)
    return part


def _file_system(handle: int) -> tuple[int, str]:
    """Return an id of a descriptor's mount; it also differs for a bind mount of another folder of the same disk."""
    mount = ""
    with suppress(OSError), open(f"/proc/self/fdinfo/{handle}") as file:  # noqa: PTH123 - only on Linux
        mount = next((line for line in file if line.startswith("mnt_id:")), "")
    return os.fstat(handle).st_dev, mount


def _check_tree(folder: int, here: tuple[int, str], shown: Path, depth: int = 0) -> None:
    """Raise an `OSError` if a folder cannot be removed completely."""
    _check(folder, here, shown, depth)
    with os.scandir(folder) as entries:
        inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in inner:
        with suppress(FileNotFoundError), _opened(name, folder) as handle:
            _check_tree(handle, here, shown / name, depth + 1)


def _empty(folder: int, here: tuple[int, str], shown: Path, depth: int = 0) -> None:
    """Remove everything in a folder."""
    _check(folder, here, shown, depth)
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            with _opened(name, folder) as handle:  # fails if a link has taken its place
                _empty(handle, here, shown / name, depth + 1)
            os.rmdir(name, dir_fd=folder)


def _check(folder: int, here: tuple[int, str], shown: Path, depth: int) -> None:
    if _file_system(folder) != here:
        raise OSError(errno.EXDEV, "Something else is mounted there: unmount it first", str(shown))
    if depth > MAX_DEPTH:
        raise OSError(errno.ENAMETOOLONG, "Folders lie in each other deeper than any of ours: remove it yourself", str(shown))


@contextmanager
def _opened(name: str, folder: int) -> Iterator[int]:
    handle = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)

"""Files below a folder that somebody else may have filled: read, listed and removed without following a link out of it.

A folder of runs may come from a download, an archive or a colleague, so nothing in it is believed to be what its name says. Every
part of a path below the folder is opened relative to the one before it (``dir_fd``) with ``O_NOFOLLOW``: what was looked at is what is
used, even if somebody puts a link into its place in between. The folder itself may be reached by links, as its user has made those.
FIFOs, devices and sockets are no files here, and opening one never waits.
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
"""Folders within each other that are removed: more of them were made to exhaust something."""
MAX_TEXT = 1 << 24
"""Bytes of a text file that are read."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_RUN_ID = re.compile(r"[0-9a-z]+(-[0-9a-z]+)*", re.ASCII)
_MAX_RUN_ID = 128


def is_run_id(text: object) -> bool:
    """Return whether `text` can be the id of a run, which names its folder: ``2026-11-21-153012-digits``."""
    return isinstance(text, str) and len(text) <= _MAX_RUN_ID and _RUN_ID.fullmatch(text) is not None


@contextmanager
def folder_below(base: Path, *parts: str) -> Iterator[int]:
    """Give a descriptor of a folder below `base`.

    Raises
    ------
    OSError
        It is not there, or one of `parts` is a link or something else than a folder.
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
    """Give a descriptor to read a regular file below `base` with; raises like :func:`folder_below`."""
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
    """Return what a regular file below `base` holds.

    Parameters
    ----------
    limit : int, optional
        Bytes that it may have; ``None``: as many as there are.

    Raises
    ------
    OSError
        It is not there, is no regular file, is reached by a link, or is larger.
    """
    with file_below(base, *parts) as handle:
        if limit is not None and os.fstat(handle).st_size > limit:
            raise OSError(errno.EFBIG, "It is larger than anything that we write", str(base.joinpath(*parts)))
        with os.fdopen(os.dup(handle), "rb") as file:
            return file.read() if limit is None else file.read(limit)


def names_below(base: Path, *parts: str) -> list[str]:
    """Return the names of what lies in a folder below `base`, none where it is not there or is a link."""
    try:
        with folder_below(base, *parts) as folder:
            return os.listdir(folder)  # noqa: PTH208 - of a descriptor
    except OSError:
        return []


def kind_below(base: Path, *parts: str) -> int | None:
    """Return the kind (``stat.S_IFMT``) of what lies below `base`, ``None`` where nothing does or a link leads there."""
    *folders, name = parts
    try:
        with folder_below(base, *folders) as folder:
            return stat.S_IFMT(os.stat(_name(name), dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return None


def is_file_below(base: Path, *parts: str) -> bool:
    """Return whether a regular file lies there."""
    return kind_below(base, *parts) == stat.S_IFREG


def is_folder_below(base: Path, *parts: str) -> bool:
    """Return whether a real folder lies there."""
    return kind_below(base, *parts) == stat.S_IFDIR


def make_folder_below(base: Path, *parts: str) -> Path:
    """Make a folder below `base`, for its owner only, and those above it; return it. An `OSError`: a link is in the way."""
    for depth, part in enumerate(parts):
        with folder_below(base, *parts[:depth]) as folder, suppress(FileExistsError):
            os.mkdir(_name(part), 0o700, dir_fd=folder)
    with folder_below(base, *parts):
        return base.joinpath(*parts)


def mark_below(base: Path, *parts: str) -> None:
    """Make an empty file below `base`, for its owner only; what is there stays as it is, whatever it is."""
    *folders, name = parts
    with folder_below(base, *folders) as folder, suppress(FileExistsError):
        os.close(os.open(_name(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder))


def write_new(path: Path, text: str) -> None:
    """Write a file for its owner only that is not there yet."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


def remove_below(base: Path, *parts: str) -> None:
    """Remove what lies below `base`: a link and never what it leads to, a folder with all that is in it. Nothing there is no error.

    Raises
    ------
    OSError
        A link leads there, another file system is mounted within it, or it may not be removed. Where something is mounted, or folders lie
        deeper than any of ours, nothing is removed.
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
            os.rmdir(name, dir_fd=folder)  # fails where something else is there by now


def _name(part: str) -> str:
    if not part or part in (".", "..") or "/" in part or "\0" in part:
        raise OSError(errno.EINVAL, "It is no name", part)
    return part


def _file_system(handle: int) -> tuple[int, str]:
    """Return what tells mounts apart, also one of another folder of the same disk."""
    mount = ""
    with suppress(OSError), open(f"/proc/self/fdinfo/{handle}") as file:  # noqa: PTH123 - Linux alone has it
        mount = next((line for line in file if line.startswith("mnt_id:")), "")
    return os.fstat(handle).st_dev, mount


def _check_tree(folder: int, here: tuple[int, str], shown: Path, depth: int = 0) -> None:
    """Raise an `OSError` where a folder cannot be removed as a whole."""
    _check(folder, here, shown, depth)
    with os.scandir(folder) as entries:
        inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in inner:
        with suppress(FileNotFoundError), _opened(name, folder) as handle:
            _check_tree(handle, here, shown / name, depth + 1)


def _empty(folder: int, here: tuple[int, str], shown: Path, depth: int = 0) -> None:
    """Remove all that lies in a folder."""
    _check(folder, here, shown, depth)
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            with _opened(name, folder) as handle:  # fails where a link has taken its place
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

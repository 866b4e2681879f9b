"""Other ways to write and inspect files than ``open``, on ranks other than 0: descriptors, links, attributes, copies.

Each is applied to the rank's own files (`OwnFiles`), or left to rank 0.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from .asked_paths import asked_path
from .written_files import OwnFiles

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def other_ways(files: OwnFiles) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield owner, name and replacement of each function that writes or inspects files."""
    links: dict[str, str] = {}  # that the cell has made, and what they say
    yield os, "open", _opened(files, os.open)
    yield os, "symlink", _linked(files, os.symlink, links)
    yield os, "link", _hard_linked(files, os.link)
    yield os, "readlink", _read_link(files, os.readlink, links)
    yield os, "truncate", _truncated(files, os.truncate)
    yield os, "chmod", _changed(files, os.chmod)
    yield os, "utime", _changed(files, os.utime, has_to_be_there=True)  # by which `touch` tells whether it makes one
    yield os, "access", _accessed(files, os.access)
    for copy in (shutil.copyfile, shutil.copy, shutil.copy2):
        yield shutil, copy.__name__, _copied(files, copy)


def _missing(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _opened(files: OwnFiles, original: Callable[..., int]) -> Callable[..., int]:
    @wraps(original)
    def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        asked = asked_path(path)
        if files.is_gone(asked) and not flags & os.O_CREAT:
            raise _missing(path)
        if asked is not None and flags & WRITES and files.can_write(asked, makes=bool(flags & os.O_CREAT)):
            if flags & os.O_CREAT and flags & os.O_EXCL and files.is_there(asked):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            path = files.instead(asked, keep=not flags & os.O_TRUNC, there=not flags & os.O_CREAT)
        elif asked in files.own:
            path = files.own[asked]
        return original(path, flags, *args, **kwargs)

    return opened


def _linked(files: OwnFiles, original: Callable[..., None], links: dict[str, str]) -> Callable[..., None]:
    @wraps(original)
    def linked(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        asked = asked_path(dst)
        if asked is None or not files.is_here(asked):
            original(src, dst, *args, **kwargs)
            return
        if files.is_there(asked):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
        target = os.path.normpath(Path(asked).parent / os.fsdecode(src))
        original(files.own.get(target, target), files.instead(asked, keep=False), *args, **kwargs)
        links[files.own[asked]] = src

    return linked


def _read_link(files: OwnFiles, original: Callable[..., Any], links: dict[str, str]) -> Callable[..., Any]:
    @wraps(original)
    def read_link(path: Any, *args: Any, **kwargs: Any) -> Any:
        own = files.own.get(asked_path(path) or "")
        return links[own] if own in links else original(path if own is None else own, *args, **kwargs)

    return read_link


def _hard_linked(files: OwnFiles, original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def linked(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        old, new = asked_path(src), asked_path(dst)
        if new is None or not files.is_here(new):
            original(src, dst, *args, **kwargs)
            return
        if files.is_there(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
        # A copy: what the rank has for itself may lie in another file system.
        content = Path(files.own.get(old or "", src)).read_bytes()
        Path(files.instead(new, keep=False)).write_bytes(content)

    return linked


def _truncated(files: OwnFiles, original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def truncated(path: Any, length: int) -> None:
        asked = asked_path(path)
        original(path if asked is None or not files.is_here(asked) else files.instead(asked, keep=True, there=True), length)

    return truncated


def _changed(files: OwnFiles, original: Callable[..., None], *, has_to_be_there: bool = False) -> Callable[..., None]:
    """Return a function that changes attributes of the rank's own files, and leaves those of others to rank 0."""

    @wraps(original)
    def changed(path: Any, *args: Any, **kwargs: Any) -> None:
        asked = asked_path(path)
        if asked in files.own or asked is None or not files.is_here(asked):
            original(files.own.get(asked or "", path), *args, **kwargs)
        elif has_to_be_there and not files.is_there(asked):
            raise _missing(path)

    return changed


def _accessed(files: OwnFiles, original: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(original)
    def accessed(path: Any, *args: Any, **kwargs: Any) -> bool:
        asked = asked_path(path)
        return not files.is_gone(asked) and original(files.own.get(asked or "", path), *args, **kwargs)

    return accessed


def _copied(files: OwnFiles, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def copied(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        old, new = asked_path(src), asked_path(dst)
        source = files.own.get(old, src) if old is not None else src
        if new is None or not files.is_here(new):
            return original(source, dst, *args, **kwargs)
        into = Path(dst).is_dir()
        original(source, files.instead(str(Path(new) / Path(src).name) if into else new, keep=False), *args, **kwargs)
        return str(Path(dst) / Path(src).name) if into else dst

    return copied


def own_database(files: OwnFiles, path: str, content: bytes | None) -> str:
    """Return the path of the rank's own copy of the database at `path`, made of `content` if that is known."""
    if content is None or path in files.own:
        return files.instead(path, keep=True, there=True)
    own = files.instead(path, keep=False)
    Path(own).write_bytes(content)
    return own

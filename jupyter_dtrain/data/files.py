"""Find and read files by path, glob or address, local or remote, and detect whether they have changed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import DataError, UsageError
from ..system import read_counters
from ..system.read_counters import BYTES, DECODING, FILES

if TYPE_CHECKING:
    from pyarrow import fs

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_WILD = re.compile(r"[*?\[]")
_OPTIONS = re.compile(r"\?\w+=[^*?\[]*\Z")
"""Query of an address (``?region=…``), as Arrow's file systems take it."""


@dataclass(frozen=True)
class File:
    """A file as it was when its metadata were read.

    Attributes
    ----------
    size : int
        Bytes.
    changed : int, optional
        Modification time in nanoseconds; ``None`` if the file system does not know it.
    """

    path: str
    size: int
    changed: int | None


def check_extra() -> None:
    """Raise a `UsageError` if PyArrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UsageError('Tables are read with PyArrow, which is not installed: pip install "jupyter_dtrain[data]"') from None


def find_files(paths: Paths, filesystem: Any, suffix: str) -> tuple[fs.FileSystem, list[File]]:
    """Return the files that `paths` mean, sorted by name for each path, and their file system.

    Parameters
    ----------
    paths : path, glob, folder, or several of these
        Addresses (``s3://…``) are opened with Arrow's file systems, or fsspec's.
    filesystem : pyarrow.fs.FileSystem, fsspec file system or None
    suffix : str
        Suffix of the files that are taken from a folder.

    Raises
    ------
    DataError
        A path matches no file.
    """
    check_extra()
    given = [os.fspath(paths)] if isinstance(paths, str | os.PathLike) else [os.fspath(path) for path in paths]
    if not given:
        raise UsageError("No path was given.")
    found: dict[str, File] = {}
    system: Any = None
    for path in given:
        system, inside = opened(path, filesystem)
        files = list(_matching(system, inside, suffix))
        if not files:
            raise DataError(f"There is no file {path}." if not _WILD.search(_OPTIONS.sub("", path)) else f"No file matches {path}.")
        found.update((file.path, file) for file in files)
    return system, list(found.values())


def no_rows(files: Sequence[File]) -> DataError:
    """Return the error for `files` without rows."""
    return DataError(f"There are no rows in {files[0].path}" + (f" and {len(files) - 1} other files." if len(files) > 1 else "."))


def opened(path: str, filesystem: Any) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or address, and the path within it."""
    from pyarrow import ArrowInvalid, fs

    if isinstance(filesystem, fs.FileSystem):
        return filesystem, path
    if filesystem is not None:
        return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path
    if "://" not in path:
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  # a glob is no path
    options = _OPTIONS.search(path)
    base, wild = _fixed_part(path[: options.start()] if options else path)
    try:
        system, inside = fs.FileSystem.from_uri(base + (options[0] if options else ""))
    except ArrowInvalid:  # an unknown scheme for Arrow
        import fsspec

        opened, inside = fsspec.core.url_to_fs(base)
        system = fs.PyFileSystem(fs.FSSpecHandler(opened))
    return system, f"{inside.rstrip('/')}/{wild}" if wild else inside


def _fixed_part(path: str) -> tuple[str, str]:
    """Return the folder above the first wildcard, and the rest of the path."""
    found = _WILD.search(path)
    if found is None:
        return path, ""
    base = path[: found.start()].rpartition("/")[0]
    return base, path[len(base) + 1 :]


def _matching(system: fs.FileSystem, path: str, suffix: str) -> Iterable[File]:
    from pyarrow import fs

    base, wild = _fixed_part(path)
    kind = system.get_file_info(base)
    if not wild and kind.type == fs.FileType.File:
        return [_file(kind)]
    if kind.type != fs.FileType.Directory:
        return []
    infos = system.get_file_info(fs.FileSelector(base, recursive=not wild or "/" in wild or "**" in wild))
    infos = sorted((info for info in infos if info.type == fs.FileType.File), key=lambda info: info.path)
    if wild:
        pattern = _regex(f"{base.rstrip('/')}/{wild}")
        return [_file(info) for info in infos if pattern.fullmatch(info.path)]
    inside = [PurePath(info.path[len(base.rstrip("/")) + 1 :]) for info in infos]
    # Readers of data sets skip these names by convention: they are metadata (`_SUCCESS`, `_metadata`).
    kept = [info for info, name in zip(infos, inside, strict=True) if not any(part.startswith(("_", ".")) for part in name.parts)]
    return [_file(info) for info in kept if info.path.endswith(suffix)]


def _regex(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a glob: ``*`` matches within a folder, ``**`` across folders."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(part if part.startswith("[") and part.endswith("]") else known.get(part, re.escape(part)) for part in parts))


def _file(info: fs.FileInfo) -> File:
    return File(info.path, info.size or 0, info.mtime_ns)


@contextmanager
def counted_file(system: fs.FileSystem, file: File) -> Iterator[CountedFile]:
    """Open a file that must be unchanged; count what is read of it, and count the rest of the ``with`` block as decoding."""
    with read_counters.spent(FILES):
        check_unchanged(system, file)
        # Not memory-mapped: truncating a mapped file while it is read would kill the process.
        opened = system.open_input_file(file.path)
    counted, began = CountedFile(opened), perf_counter()
    with opened:
        yield counted
    read_counters.add(DECODING, perf_counter() - began - counted.seconds)


class CountedFile:
    """A file for Arrow that counts bytes and seconds, with the methods that Arrow calls on Python files.

    Attributes
    ----------
    seconds : float
        Seconds spent in reads.
    """

    closed = False

    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self.seconds = 0.0
        self.seek, self.tell, self.size = opened.seek, opened.tell, opened.size

    def read(self, nbytes: int | None = None) -> bytes:
        """Read bytes."""
        found: bytes = self._counted(self._opened.read, nbytes)
        return found

    def read_buffer(self, nbytes: int | None = None) -> Any:
        """Read bytes into an Arrow buffer."""
        return self._counted(self._opened.read_buffer, nbytes)

    def _counted(self, read: Callable[[int | None], Any], nbytes: int | None) -> Any:
        began = perf_counter()
        found = read(nbytes)
        seconds = perf_counter() - began
        self.seconds += seconds
        read_counters.add(FILES, seconds)
        read_counters.add(BYTES, len(found))
        return found

    def close(self) -> None:
        """Do nothing: the file is closed by the code that has opened it."""

    def readable(self) -> bool:
        """Return ``True``."""
        return True


def check_unchanged(system: fs.FileSystem, file: File) -> None:
    """Raise a `DataError` if a file has changed since its metadata were read."""
    from pyarrow import fs

    info = system.get_file_info(file.path)
    if info.type == fs.FileType.NotFound:
        raise DataError("the file is not there any more")
    if (info.size or 0, info.mtime_ns) != (file.size, file.changed):
        raise DataError(f"the file was changed since its metadata were read (it has {info.size:,} bytes, and had {file.size:,})")

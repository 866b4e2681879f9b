"""Listings of folders of the notebook: all ranks get those of rank 0.

Rank 0 writes and removes the cell's files, a moment before or after another rank lists their folder. So `os.listdir` and `os.scandir`,
and `glob`, `pathlib` and `os.walk`, which use these, return rank 0's listing on all ranks.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from ...system.patches import patched
from .asked_paths import is_within
from .common_answers import PATHLIB, CommonAnswers

_THROUGH = PATHLIB | {__file__, os.walk.__code__.co_filename, glob.glob.__code__.co_filename}
"""Files of the standard library that list folders on behalf of the cell."""


class ListedEntry(os.PathLike[Any]):
    """An entry of a folder as an :class:`os.DirEntry`, with what rank 0 has found."""

    __slots__ = ("_inode", "_is_dir", "_is_file", "_is_symlink", "_leads_to_dir", "_leads_to_file", "name", "path")

    def __init__(self, entry: os.DirEntry[Any]) -> None:
        self.name, self.path, self._inode = entry.name, entry.path, entry.inode()
        self._is_dir, self._is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
        self._leads_to_dir, self._leads_to_file, self._is_symlink = entry.is_dir(), entry.is_file(), entry.is_symlink()

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a folder, or a link to one."""
        return self._leads_to_dir if follow_symlinks else self._is_dir

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a file, or a link to one."""
        return self._leads_to_file if follow_symlinks else self._is_file

    def is_symlink(self) -> bool:
        """Return whether it is a symbolic link."""
        return self._is_symlink

    def is_junction(self) -> bool:
        """Return whether it is a junction of Windows."""
        return False

    def inode(self) -> int:
        """Return its inode number on rank 0."""
        return self._inode

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the result of `os.stat`."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)  # noqa: PTH116  # a text or bytes

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class Listing(Iterator[Any]):
    """The result of `os.scandir`."""

    def __init__(self, entries: list[ListedEntry]) -> None:
        self._entries = iter(entries)

    def __next__(self) -> ListedEntry:
        return next(self._entries)

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration."""
        self._entries = iter(())


class CommonFolders:
    """Gives all ranks rank 0's listings of the notebook's folder, and of folders in it.

    Parameters
    ----------
    answers : CommonAnswers
    folder : str
        The notebook's folder, with a separator at its end.
    """

    def __init__(self, answers: CommonAnswers, folder: str) -> None:
        self._answers, self._folder = answers, folder

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the functions that list a folder, in the ``with`` block."""
        names, entries = os.listdir, os.scandir

        def scanned(path: Any) -> list[ListedEntry]:
            with entries(path) as found:
                return [ListedEntry(entry) for entry in found]

        listdir = self._common(names, names, lambda found: found)
        scandir = self._common(entries, scanned, Listing)
        with patched(os, "listdir", listdir), patched(os, "scandir", scandir):
            yield

    def _common(self, original: Callable[..., Any], ask: Callable[[Any], Any], told: Callable[[Any], Any]) -> Callable[..., Any]:
        @wraps(original)
        def asked(path: Any = ".") -> Any:
            path = "." if path is None else path
            if not is_within(self._folder, path) or not self._answers.all_ask(through=_THROUGH):
                return original(path)
            return told(self._answers.of_first(f"what is in {path!r}", lambda: ask(path)))

        return asked

"""Find, load and check what other installed packages provide by name: strategies, launchers, integrations.

A notebook may install a package at any time. Reading all entry points takes some 25 ms, so they are read again only if a package was
installed, removed or changed. A folder's modification time would say little, as the notebook's own folder is on the path and cells write
files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

from ..errors import UsageError

T = TypeVar("T")
METADATA = (".dist-info", ".egg-info", ".egg", ".egg-link")
"""Suffixes of folders and files with a package's metadata."""


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of `group` by lower-case name."""
    folders = [folder or os.curdir for folder in sys.path]
    return dict(_read(group, tuple(package for folder in folders for package in _packages_in(folder, _stamp(folder)))))


@lru_cache(maxsize=16)
def _read(group: str, _packages: tuple[tuple[str, int], ...]) -> dict[str, EntryPoint]:
    return {point.name.lower(): point for point in entry_points(group=group)}


@lru_cache(maxsize=256)
def _packages_in(folder: str, stamp: int) -> tuple[tuple[str, int], ...]:
    """Return the paths of the metadata of the packages in `folder`, each with its modification time."""
    try:
        entries = [Path(folder, name) for name in os.listdir(folder) if name.endswith(METADATA)]  # noqa: PTH208  # many names, few of these
    except OSError:
        return ((folder, stamp),)  # a zip archive, or missing
    return tuple((str(entry), _stamp(str(entry))) for entry in sorted(entries))


def _stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116  # a text, and it may be none of a folder
    except OSError:
        return 0


def load(point: EntryPoint, kind: type[T], *, what: str, check: Callable[[T], str | None] | None = None) -> T:
    """Return the object that an entry point names, instantiated if it is a class.

    Parameters
    ----------
    point : EntryPoint
    kind : type
        Required type.
    what : str
        What refers to it, for example ``--strategy counting``, for error messages.
    check : callable, optional
        Returns what else is wrong with it, as the rest of a sentence that begins with the entry point; ``None`` for nothing.

    Raises
    ------
    UsageError
        It cannot be imported or instantiated, or is not of this type.
    """
    try:
        found = point.load()
        if isinstance(found, type):
            found = found()
    except Exception as error:
        raise UsageError(f"{what}: {point.value} cannot be used ({type(error).__name__}: {error}).") from error
    if not isinstance(found, kind):
        raise UsageError(f"{what}: {point.value} is no {kind.__module__}.{kind.__qualname__}.")
    wrong = check(found) if check is not None else None
    if wrong is not None:
        raise UsageError(f"{what}: {point.value} {wrong}.")
    return found

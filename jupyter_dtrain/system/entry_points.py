"""What other installed packages bring, by name: strategies, launchers, integrations. All are found, loaded and checked here.

A notebook may install a package at any time. Reading all of them takes some 25 ms, so they are read again where a folder has changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from ..errors import UsageError

T = TypeVar("T")


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of `group` by name, in lower case."""
    return dict(_read(group, tuple((folder, _stamp(folder)) for folder in sys.path)))


@lru_cache(maxsize=16)
def _read(group: str, _folders: tuple[tuple[str, int], ...]) -> dict[str, EntryPoint]:
    return {point.name.lower(): point for point in entry_points(group=group)}


def _stamp(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116  # a text, and it may be none of a folder
    except OSError:
        return 0


def load(point: EntryPoint, kind: type[T], *, what: str, check: Callable[[T], str | None] | None = None) -> T:
    """Return what an entry point names: a `kind`, or a class of these, which is made.

    Parameters
    ----------
    point : EntryPoint
    kind : type
        What it has to be.
    what : str
        What brought us to it, such as ``--strategy counting``, for the message of an error.
    check : callable, optional
        Returns what else is wrong with it, as the rest of a sentence that begins with the entry point; ``None`` for nothing.

    Raises
    ------
    UsageError
        It cannot be imported or made, or it is something else.
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

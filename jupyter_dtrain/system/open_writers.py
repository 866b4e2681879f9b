"""Writers that nobody has closed: what they hold is written at the end of the cell, of the process, or of their own lives.

A copy of a writer (a snapshot's, that which comes home) takes over from it, and what it was a copy of must not write any more what it
still holds: it would be over the rows that have come since. So each knows the place where its rows came, which no copy of it does.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Protocol
from weakref import WeakSet


class Writer(Protocol):
    """What rows are added to.

    Attributes
    ----------
    folder : str
    place : Place, optional
        Where rows came last; ``None``: elsewhere, and this is the copy that goes on.
    """

    folder: str
    place: Place | None

    def flush(self) -> None:
        """Write what has not been written yet."""

    def forget(self) -> None:
        """Hold nothing any more that is to be written."""


class Place:
    """One process, on an engine during one run. In a copy there is ``None``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


_here = Place()
_gone = Place()
_open: WeakSet[Any] = WeakSet()


def here() -> Place:
    """Return the place at which rows come now."""
    return _here


def note(writer: Writer) -> None:
    """Know of a writer, and have those that are open be flushed at the end of each of a notebook's cells."""
    _open.add(writer)
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", flush_all)  # once


def begin(writer: Writer) -> None:
    """Let a writer be the only one of its folder: what others hold was to be in the files that are removed now."""
    for other in list(_open):
        if other is not writer and other.folder == writer.folder:
            other.forget()


def is_ours(writer: Writer) -> bool:
    """Return whether what a writer holds is to be written here."""
    return writer.place is None or writer.place is _here


def flush_all(*_: object) -> None:
    """Have all that are open write what they hold; the first error is raised when each has tried."""
    errors = []
    for writer in list(_open):
        try:
            if is_ours(writer):
                writer.flush()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def leave() -> None:
    """Let none of those that there are write any more: what they hold went elsewhere with them, or is another process's."""
    global _here
    _here = Place()
    for writer in list(_open):
        if writer.place is None:
            writer.place = _gone


atexit.register(flush_all)
os.register_at_fork(after_in_child=leave)

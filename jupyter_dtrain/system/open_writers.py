"""Flush unclosed writers at the end of the cell, of the process, or of their own lives.

A copy of a writer (in a snapshot, or returned to the notebook) takes over from the original, whose buffered rows must not be written any
more: they would overwrite rows that came later. So each writer stores the place at which rows were added, and copies do not.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Protocol
from weakref import WeakSet


class Writer(Protocol):
    """An object that buffers rows.

    Attributes
    ----------
    folder : str
    place : Place, optional
        Where rows were added last; ``None`` for elsewhere, which makes this the copy that continues.
    """

    folder: str
    place: Place | None

    def flush(self) -> None:
        """Write the buffered rows."""

    def forget(self) -> None:
        """Drop the buffered rows."""


class Place:
    """A process, on an engine during one run. Pickling replaces it by ``None``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


_here = Place()
_gone = Place()
_open: WeakSet[Any] = WeakSet()


def here() -> Place:
    """Return the current place."""
    return _here


def note(writer: Writer) -> None:
    """Register a writer, and flush open writers at the end of each of the notebook's cells."""
    _open.add(writer)
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", flush_all)  # a no-op if it is registered already


def begin(writer: Writer) -> None:
    """Make a writer the only one of its folder: others drop their rows, as their files are being removed."""
    for other in list(_open):
        if other is not writer and other.folder == writer.folder:
            other.forget()


def is_ours(writer: Writer) -> bool:
    """Return whether a writer's buffered rows are to be written here."""
    return writer.place is None or writer.place is _here


def flush_all(*_: object) -> None:
    """Flush all open writers of this place; raise the first error after all were tried."""
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
    """Stop existing writers from writing here: their copies elsewhere continue, or they belong to the parent process."""
    global _here
    _here = Place()
    for writer in list(_open):
        if writer.place is None:
            writer.place = _gone


atexit.register(flush_all)
os.register_at_fork(after_in_child=leave)

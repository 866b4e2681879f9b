"""SQLite databases that the cell opens: rank 0 opens the file, and each other rank a copy of its own.

Rank 0 sends the content of the file as it is when it opens it. When the others come here, it may already have written more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from ...system.patches import patched
from .asked_paths import asked_path
from .common_answers import CommonAnswers

MOST = 256 << 20
"""Largest size in bytes of a database that rank 0 sends; of a larger one, the others copy the file."""

Place = Callable[[str, bytes | None], str]
"""Returns the path of a rank's own copy of a database, given its path and rank 0's content of it, if that is known."""


class CommonDatabases:
    """The databases of one run.

    Parameters
    ----------
    answers : CommonAnswers
    folder : str
        The notebook's folder, with a separator at its end.
    place : callable, optional
        On ranks other than 0.
    """

    def __init__(self, answers: CommonAnswers, folder: str, *, place: Place | None = None) -> None:
        self._answers, self._folder, self._place = answers, folder, place

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace ``sqlite3.connect`` in the ``with`` block."""
        connect = self._connected(sqlite3.connect)
        with patched(sqlite3, "connect", connect), patched(sqlite3.dbapi2, "connect", connect):
            yield

    def _connected(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            path = None if database in (":memory:", "", b"") or kwargs.get("uri") else asked_path(database)
            if path is None or not path.startswith(self._folder):
                return original(database, *args, **kwargs)
            content = (
                self._answers.of_first("what is in a database", lambda: _content(path))
                if self._answers.all_ask(through=(__file__,))
                else None
            )
            return original(database if self._place is None else self._place(path, content), *args, **kwargs)

        return connect


def _content(path: str) -> bytes | None:
    file = Path(path)
    if not file.exists():
        return b""
    return file.read_bytes() if file.stat().st_size <= MOST else None

"""The database of one folder of runs: opened when it is first needed, and again after every failure.

Reading changes nothing on the disk: no table is made, none is brought up to date, and no file appears beside the database. Whoever writes
first does that. So there is a connection for each: what only reads must not be what makes, or locks out, a version of this project.
"""

from __future__ import annotations

import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import StoreError
from ..system.confined import mark_below, write_new
from .connections import FileState, connect_to_read, connect_to_write, is_open_somewhere, is_same_file, state_of

DATABASE = "runs.sqlite"
GITIGNORE = ".gitignore"
LIMIT = 60.0
"""Seconds that one access may take: one that takes longer was made to."""
LONGEST_PATH = 512
"""Characters of a path that SQLite opens (its ``MAX_PATHNAME``)."""
_INSTRUCTIONS = 100_000  # of SQLite's machine between two looks at the clock


class Database:
    """What may be read or written by one thread at a time. Every failure is a `StoreError`.

    Parameters
    ----------
    folder : Path
        Where it is. Created, for its owner only, when something is to be written that needs no run yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._read_state: FileState | None = None  # of the files when the reader was opened
        self._deadline = 0.0

    @property
    def path(self) -> Path:
        """The database's file."""
        return self._folder / DATABASE

    @property
    def exists(self) -> bool:
        """Whether anything was ever written."""
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return found.st_size > 0 or not stat.S_ISREG(found.st_mode)  # what is none of ours is there, to be refused

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give the connection to read with."""
        with self._lock, self._explained("Is it damaged? Then move it away: a new one is begun with the next run."):
            yield self._limited(self._open_to_read())

    @contextmanager
    def transaction(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Give the connection to write with: all of what the ``with`` block writes is there in the end or, after an error, nothing."""
        with self._lock, self._explained("Check that the folder is writable and the disk not full."):
            connection = self._limited(self._open_to_write(create=create))
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk has rolled it back already
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Let go of the database. What comes next opens it again."""
        with self._lock:
            self._close_reader()
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @contextmanager
    def _explained(self, advice: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self.close()  # whatever is wrong with it, the next call starts anew
            raise StoreError(f"The record of runs in {self._folder} cannot be used: {error}. {self._advice(error, advice)}") from error

    def _advice(self, error: Exception, otherwise: str) -> str:
        if len(str(self.path)) > LONGEST_PATH and "unable to open" in str(error):
            return f"SQLite opens no file whose path has more than {LONGEST_PATH} characters: put the notebook nearer to the root."
        return otherwise

    def _limited(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        self._deadline = time.monotonic() + LIMIT
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        if self._writer is not None and self.exists:
            return self._writer
        state = state_of(self.path)
        if state is None:
            self.close()
            raise StoreError(f"There are no runs in {self._folder}: {DATABASE} is not there.")
        if self._reader is None or not self._is_up_to_date(state):
            self._close_reader()
            self._reader = self._watched(connect_to_read(self.path, state))
            self._read_state = state
        return self._reader

    def _is_up_to_date(self, state: FileState) -> bool:
        """Return whether the reader sees what is there: where nobody had the file open, it has taken it for one that does not change."""
        before = self._read_state
        if before is None or not is_open_somewhere(before):
            return state == before
        return is_open_somewhere(state) and is_same_file(before, state)

    def _open_to_write(self, *, create: bool) -> sqlite3.Connection:
        if self._writer is not None and self.exists:  # someone may have deleted the folder
            return self._writer
        self.close()
        if create:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark_below(self._folder, DATABASE)
            with suppress(FileExistsError):  # runs hold what the notebook does: its data, and its cells
                write_new(self._folder / GITIGNORE, "*\n")
        elif not self.exists:
            raise StoreError(f"There are no runs in {self._folder}: {DATABASE} is not there.")
        self._writer = self._watched(connect_to_write(self.path))
        return self._writer

    def _watched(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        connection.set_progress_handler(lambda: time.monotonic() > self._deadline, _INSTRUCTIONS)
        return connection

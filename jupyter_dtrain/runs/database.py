"""Access the database of one folder of runs. It is opened at the first access, and again after every failure.

Reading changes nothing on disk: it makes no tables, migrates none, and leaves no file beside the database. The first writer does so. So
reader and writer have separate connections: a reader must neither migrate the database nor lock other versions of this project out.
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
"""Maximum seconds of one access. A database on which a query takes longer may be malicious."""
LONGEST_PATH = 512
"""Maximum characters of a path that SQLite opens (its ``MAX_PATHNAME``)."""
_INSTRUCTIONS = 100_000  # of SQLite's virtual machine between two checks of the deadline


class Database:
    """A database that one thread at a time reads or writes. Every failure is a `StoreError`.

    Parameters
    ----------
    folder : Path
        Folder of the database. It is created with mode 0700 by a transaction with `create`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._read_state: FileState | None = None  # state of the files when the reader was opened
        self._deadline = 0.0

    @property
    def path(self) -> Path:
        """The file of the database."""
        return self._folder / DATABASE

    @property
    def exists(self) -> bool:
        """Whether anything was written yet."""
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return found.st_size > 0 or not stat.S_ISREG(found.st_mode)  # a link or the like counts too, and is refused when it is opened

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for reading."""
        with self._lock, self._explained("Is it damaged? Then move it away: a new one is begun with the next run."):
            yield self._limited(self._open_to_read())

    @contextmanager
    def transaction(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield the connection for writing; commit at the end of the ``with`` block, and roll back after an error."""
        with self._lock, self._explained("Check that the folder is writable and the disk not full."):
            connection = self._limited(self._open_to_write(create=create))
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # after a full disk, SQLite has rolled it back already
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connections. The next access opens them again."""
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
            self.close()  # after any failure, the next access opens the database again
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
        """Return whether the reader sees the current data. If no process had the file open, it was opened as immutable."""
        before = self._read_state
        if before is None or not is_open_somewhere(before):
            return state == before
        return is_open_somewhere(state) and is_same_file(before, state)

    def _open_to_write(self, *, create: bool) -> sqlite3.Connection:
        if self._writer is not None and self.exists:  # the user may have deleted the folder
            return self._writer
        self.close()
        if create:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark_below(self._folder, DATABASE)
            with suppress(FileExistsError):  # keeps the notebook's data and cells out of Git
                write_new(self._folder / GITIGNORE, "*\n")
        elif not self.exists:
            raise StoreError(f"There are no runs in {self._folder}: {DATABASE} is not there.")
        self._writer = self._watched(connect_to_write(self.path))
        return self._writer

    def _watched(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        connection.set_progress_handler(lambda: time.monotonic() > self._deadline, _INSTRUCTIONS)
        return connection

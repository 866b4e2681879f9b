"""The database of one folder of runs: opened when it is first needed, and again after every failure."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StoreError
from .schema import connect

DATABASE = "runs.sqlite"


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
        self._connection: sqlite3.Connection | None = None

    @property
    def path(self) -> Path:
        """The database's file."""
        return self._folder / DATABASE

    @property
    def exists(self) -> bool:
        """Whether anything was ever written."""
        return self.path.exists()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give the connection to read with."""
        with self._lock, self._explained():
            yield self._open(create=False)

    @contextmanager
    def transaction(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Give the connection to write with: all of what the ``with`` block writes is there in the end or, after an error, nothing."""
        with self._lock, self._explained():
            connection = self._open(create=create)
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
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self.close()  # whatever is wrong with it, the next call starts anew
            raise StoreError(
                f"The record of runs in {self._folder} cannot be used: {error}. Check that the folder is writable and the disk not full."
            ) from error

    def _open(self, *, create: bool) -> sqlite3.Connection:
        if self._connection is not None and self.exists:  # someone may have deleted the folder
            return self._connection
        self.close()
        if create:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch(mode=0o600)
        elif not self.exists:
            raise StoreError(f"There are no runs in {self._folder}: {DATABASE} is not there.")
        self._connection = connect(self.path)
        return self._connection

"""The database of one folder of runs: opened when it is first needed, and again after every failure."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from ..errors import StoreError

# The tables of the record of runs, and how a database of an older version becomes one of this.

SCHEMA_VERSION = 2
BUSY_TIMEOUT = timedelta(seconds=10)
"""Time in which other processes let go of a database."""
BUSY_INTERVAL = timedelta(milliseconds=20)

# No "points" without their curve and no curve without its run: deleting a run deletes all three.
_SCHEMA = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    phase TEXT NOT NULL,
    world_size INTEGER NOT NULL,
    started REAL NOT NULL,
    ended REAL,
    error TEXT,
    arguments TEXT NOT NULL,
    owner_host TEXT NOT NULL,
    owner_pid INTEGER NOT NULL,
    owner_created REAL NOT NULL,
    seen REAL NOT NULL,
    tags TEXT NOT NULL DEFAULT '[]'
);
CREATE TABLE curves (
    curve INTEGER PRIMARY KEY,
    number INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    name TEXT NOT NULL,
    UNIQUE (number, name)
);
CREATE TABLE points (
    curve INTEGER NOT NULL REFERENCES curves ON DELETE CASCADE,
    step INTEGER NOT NULL,
    time REAL NOT NULL,
    value REAL
);
CREATE INDEX points_by_step ON points (curve, step);
"""

# Tags; and points are found by their step.
_FROM_1_TO_2 = """
ALTER TABLE runs ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
DROP INDEX points_of_curve;
CREATE INDEX points_by_step ON points (curve, step);
"""


def connect(path: Path) -> sqlite3.Connection:
    """Open a database, and make its tables or bring them up to date where that is needed.

    Raises
    ------
    StoreError
        A newer version of this project has written it.
    sqlite3.Error
        It cannot be read, or other processes have kept it locked for longer than `BUSY_TIMEOUT`.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT.total_seconds()
    while True:
        try:
            return _connect(path)
        except sqlite3.OperationalError as error:
            # SQLite's own timeout does not wait where processes switch a new database to WAL at the same moment: it fails at once.
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() >= deadline:
                raise
            time.sleep(BUSY_INTERVAL.total_seconds())


def _connect(path: Path) -> sqlite3.Connection:
    # Where the folder cannot be written, SQLite cannot lock either: read the file as one that does not change.
    writable = os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)
    uri = path.as_uri() + ("" if writable else "?immutable=1")
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT.total_seconds(), isolation_level=None, check_same_thread=False
    )  # our lock guards it
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{path} was written by a newer version of jupyter_dtrain (format {version}, this one knows {SCHEMA_VERSION}): "
                "update jupyter_dtrain, or use another folder."
            )
        if version < SCHEMA_VERSION and writable:
            _create_schema(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _create_schema(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")  # not possible inside a transaction
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < SCHEMA_VERSION:  # no other kernel was faster
        for statement in filter(str.strip, (_SCHEMA if version == 0 else _FROM_1_TO_2).split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


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

"""The database of one folder of runs: opened when it is first needed, and again after every failure.

Reading changes nothing on the disk: no table is made, none is brought up to date, and no file appears beside the database. Whoever writes
first does that. So there is a connection for each: what only reads must not be what makes, or locks out, a version of this project.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from ..errors import StoreError
from ..system.confined import mark_below, read_below, write_new
from .schema import COLUMNS, SCHEMA_VERSION, SINCE, create_schema

BUSY_TIMEOUT = timedelta(seconds=10)
"""Time in which other processes let go of a database."""
BUSY_INTERVAL = timedelta(milliseconds=20)

LONGEST = 1 << 24
"""Bytes of one text in a row: the longest of ours are the arguments of a run."""
_BESIDE = ("-wal", "-shm", "-journal")
FileState = tuple[tuple[int, ...] | None, ...]
"""Which files a database has, and which versions of them."""


def state_of(path: Path) -> FileState | None:
    """Return which files a database has, ``None`` where it is not there.

    Raises
    ------
    StoreError
        One of them is a link or no regular file: SQLite would follow it, and write there.
    """
    found: list[tuple[int, ...] | None] = []
    for file in (path, *(path.with_name(path.name + end) for end in _BESIDE)):
        try:
            seen = file.lstat()
        except FileNotFoundError:
            found.append(None)
            continue
        if not stat.S_ISREG(seen.st_mode):
            raise StoreError(f"{file} is a link or not a regular file, and not written by jupyter_dtrain: move it away.")
        if file is not path and seen.st_nlink > 1:  # what is written there would be written to another file
            raise StoreError(f"{file} has a second name elsewhere, and was not written by jupyter_dtrain: move it away.")
        found.append((seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns))
    return None if found[0] is None else tuple(found)


def connect_to_read(path: Path, state: FileState) -> sqlite3.Connection:
    """Open a database whose files are in `state`, to read it as it is, whatever older version of ours has written it.

    Raises
    ------
    StoreError
        A newer version has written it, or something else than this project.
    """
    if is_open_somewhere(state) and os.access(path.parent, os.W_OK):
        return _checked_to_read(path, "mode=ro", state)
    if not _has_log(state) or not os.access(path.parent, os.W_OK):
        # SQLite would make files beside it, which are for those who write.
        return _checked_to_read(path, "mode=ro&immutable=1", state)
    # Copied or moved without the file that says who has it open: SQLite would mend it where it lies.
    with tempfile.TemporaryDirectory(prefix="dtrain-") as name:  # files that are open outlive it
        copy = Path(name) / path.name
        for file in (path, path.with_name(path.name + _BESIDE[0])):
            (copy.parent / file.name).write_bytes(read_below(file.parent, file.name, limit=None))
        return _checked_to_read(copy, "mode=rw", None)


def is_open_somewhere(state: FileState) -> bool:
    """Return whether a process has the database open, or has died while it had: such a connection sees what others write."""
    return _has_log(state) and state[2] is not None


def is_same_file(one: FileState, other: FileState) -> bool:
    """Return whether two states are of one file, whatever is in it."""
    return one[0] is not None and other[0] is not None and one[0][:2] == other[0][:2]


def _has_log(state: FileState) -> bool:
    return state[1] is not None and state[1][2] > 0


def _checked_to_read(path: Path, mode: str, state: FileState | None) -> sqlite3.Connection:
    connection = _connect(path, mode)
    try:
        connection.execute("PRAGMA query_only = ON")
        if _version(connection, path) == 0:
            raise StoreError(f"There are no runs in {path.parent}: nothing was written to {path.name}.")
        connection.execute("SELECT count(*) FROM runs").fetchone()
        if state is not None:
            _check_same(path, state)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Open a database, and make its tables or bring them up to date where that is needed.

    Raises
    ------
    StoreError
        A newer version has written it, or something else than this project.
    sqlite3.Error
        It cannot be read, or other processes have kept it locked for longer than `BUSY_TIMEOUT`.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT.total_seconds()
    while True:
        try:
            return _connect_to_write(path)
        except sqlite3.OperationalError as error:
            # SQLite's own timeout does not wait where processes switch a new database to WAL at the same moment: it fails at once.
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() >= deadline:
                raise
            time.sleep(BUSY_INTERVAL.total_seconds())


def _connect_to_write(path: Path) -> sqlite3.Connection:
    state = state_of(path)
    connection = _connect(path, "mode=rw")
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        if state is not None:
            _check_same(path, state)
        if _version(connection, path) < SCHEMA_VERSION:
            create_schema(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.as_uri()}?{mode}"
    timeout = BUSY_TIMEOUT.total_seconds()
    connection = sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)  # our lock guards it
    connection.row_factory = sqlite3.Row
    # What is in the file may have been made to be opened by us: nothing in it runs.
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the tables, 0 where there is nothing at all; a `StoreError`: they are none of ours."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer version of jupyter_dtrain (format {version}, this one knows {SCHEMA_VERSION}): "
            "update jupyter_dtrain, or use another folder."
        )
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    if version <= 0:
        if version < 0 or found:
            raise StoreError(f"{path} is the database of another program: move it away, or use another folder.")
        return 0
    if any(kind == "trigger" for kind, *_ in found):
        raise StoreError(f"{path} has triggers, and was not written by jupyter_dtrain: move it away.")
    kinds = {name: (kind, sql) for kind, name, _, sql in found}
    wanted = COLUMNS | {table: columns for table, (since, columns) in SINCE.items() if version >= since or table in kinds}
    for table, columns in wanted.items():
        kind, sql = kinds.get(table, ("", ""))
        rows = connection.execute(f"PRAGMA table_xinfo({table})").fetchall() if kind == "table" else []
        is_plain = str(sql).upper().startswith("CREATE TABLE ") and all(row["hidden"] == 0 for row in rows)
        if not is_plain or not columns <= {row["name"] for row in rows}:
            raise StoreError(f"{path} has not the tables of a record of runs, and was not written by jupyter_dtrain: move it away.")
    return int(version)


def _check_same(path: Path, state: FileState) -> None:
    """Raise a `StoreError` where another file has taken the database's place while it was opened."""
    after = state_of(path)
    if after is None or not is_same_file(state, after):
        raise StoreError(f"{path} has been replaced while it was opened: try again.")


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

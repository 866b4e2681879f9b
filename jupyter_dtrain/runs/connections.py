"""Open connections to a database of runs, after checks of its files and of its tables.

A reader changes nothing on disk: it makes no tables, migrates none, and leaves no file beside the database. The first writer does so.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from ..errors import NoRunsError, StoreError
from ..system.confined import read_below
from .schema import COLUMNS, SCHEMA_VERSION, SINCE, create_schema

BUSY_TIMEOUT = timedelta(seconds=10)
"""Time to wait for other processes to unlock a database."""
BUSY_INTERVAL = timedelta(milliseconds=20)

LONGEST = 1 << 24
"""Maximum bytes of a text in a row. Our longest texts are the arguments of a run."""
_BESIDE = ("-wal", "-shm", "-journal")
FileState = tuple[tuple[int, ...] | None, ...]
"""Device, inode, size and modification time of the database and of each file beside it, ``None`` for a missing file."""


def state_of(path: Path) -> FileState | None:
    """Return the state of a database's files, ``None`` if the database does not exist.

    Raises
    ------
    StoreError
        A file is a link or not a regular file: SQLite would follow it, and write there.
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
        if file is not path and seen.st_nlink > 1:  # writes would go to another file too
            raise StoreError(f"{file} has a second name elsewhere, and was not written by jupyter_dtrain: move it away.")
        found.append((seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns))
    return None if found[0] is None else tuple(found)


def connect_to_read(path: Path, state: FileState) -> sqlite3.Connection:
    """Open a database whose files are in `state` for reading, without migrating it from an older version.

    Raises
    ------
    NoRunsError
        Nothing was written to it yet.
    StoreError
        A newer version or another program has written it.
    """
    if is_open_somewhere(state) and os.access(path.parent, os.W_OK):
        return _checked_to_read(path, "mode=ro", state)
    if not _has_log(state) or not os.access(path.parent, os.W_OK):
        # `immutable`: otherwise SQLite would create files beside the database.
        return _checked_to_read(path, "mode=ro&immutable=1", state)
    # The database was copied or moved without its -shm file, and SQLite would recover it in place. So it recovers a copy.
    with tempfile.TemporaryDirectory(prefix="dtrain-") as name:  # the connection keeps the deleted files open
        copy = Path(name) / path.name
        for file in (path, path.with_name(path.name + _BESIDE[0])):
            (copy.parent / file.name).write_bytes(read_below(file.parent, file.name, limit=None))
        return _checked_to_read(copy, "mode=rw", None)


def is_open_somewhere(state: FileState) -> bool:
    """Return whether a process has the database open or has died with it open, so that a connection sees the writes of others."""
    return _has_log(state) and state[2] is not None


def is_same_file(one: FileState, other: FileState) -> bool:
    """Return whether two states are of the same file, whatever its contents."""
    return one[0] is not None and other[0] is not None and one[0][:2] == other[0][:2]


def _has_log(state: FileState) -> bool:
    return state[1] is not None and state[1][2] > 0


def _checked_to_read(path: Path, mode: str, state: FileState | None) -> sqlite3.Connection:
    connection = _connect(path, mode)
    try:
        connection.execute("PRAGMA query_only = ON")
        if _version(connection, path) == 0:
            raise NoRunsError(f"There are no runs in {path.parent}: nothing was written to {path.name}.")
        connection.execute("SELECT count(*) FROM runs").fetchone()
        if state is not None:
            _check_same(path, state)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Open a database for writing, and create or migrate its tables if necessary.

    Raises
    ------
    StoreError
        A newer version or another program has written it.
    sqlite3.Error
        It cannot be read, or other processes have kept it locked for longer than `BUSY_TIMEOUT`.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT.total_seconds()
    while True:
        try:
            return _connect_to_write(path)
        except sqlite3.OperationalError as error:
            # SQLite's own timeout does not cover two processes that switch a new database to WAL at the same moment: one fails at once.
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
    connection = sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)  # `Database` has a lock
    connection.row_factory = sqlite3.Row
    # The file may be malicious: no code in its schema runs.
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version, 0 for an empty database; raise a `StoreError` if the tables are not ours."""
    connection.execute("BEGIN")  # one transaction, as another kernel may create the tables between the two queries
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer version of jupyter_dtrain (format {version}, this one knows {SCHEMA_VERSION}): "
            "update jupyter_dtrain, or use another folder."
        )
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
    """Raise a `StoreError` if the database was replaced by another file while it was opened."""
    after = state_of(path)
    if after is None or not is_same_file(state, after):
        raise StoreError(f"{path} has been replaced while it was opened: try again.")

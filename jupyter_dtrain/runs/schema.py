"""Define the tables of the record of runs, and migrate databases of older versions."""

from __future__ import annotations

import sqlite3

SCHEMA_VERSION = 4

# Foreign keys cascade: deleting a run deletes its curves and their points.
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
    tags TEXT NOT NULL DEFAULT '[]',
    hyperparameters TEXT
);
CREATE TABLE curves (
    curve INTEGER PRIMARY KEY,
    number INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    name TEXT NOT NULL,
    last REAL,
    low REAL,
    high REAL,
    UNIQUE (number, name)
);
CREATE TABLE points (
    curve INTEGER NOT NULL REFERENCES curves ON DELETE CASCADE,
    step INTEGER NOT NULL,
    time REAL NOT NULL,
    value REAL
);
CREATE INDEX points_by_step ON points (curve, step);
CREATE TABLE overviews (
    curve INTEGER PRIMARY KEY REFERENCES curves ON DELETE CASCADE,
    points BLOB NOT NULL
);
"""

# Tags, and an index of points by step.
_FROM_1_TO_2 = """
ALTER TABLE runs ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
DROP INDEX points_of_curve;
CREATE INDEX points_by_step ON points (curve, step);
"""

# Hyperparameters, NULL for runs of older versions; and a summary of each curve, so that a list of runs need not read all points.
_FROM_2_TO_3 = """
ALTER TABLE runs ADD COLUMN hyperparameters TEXT;
ALTER TABLE curves ADD COLUMN last REAL;
ALTER TABLE curves ADD COLUMN low REAL;
ALTER TABLE curves ADD COLUMN high REAL;
UPDATE curves SET
    last = (SELECT value FROM points WHERE points.curve = curves.curve ORDER BY step DESC, rowid DESC LIMIT 1),
    low = (SELECT min(value) FROM points WHERE points.curve = curves.curve AND abs(value) < 9e999),
    high = (SELECT max(value) FROM points WHERE points.curve = curves.curve AND abs(value) < 9e999);
"""

# Overviews; runs of older versions have none.
_FROM_3_TO_4 = """
CREATE TABLE overviews (
    curve INTEGER PRIMARY KEY REFERENCES curves ON DELETE CASCADE,
    points BLOB NOT NULL
);
"""

COLUMNS = {
    "runs": {
        *("number", "run_id", "name", "phase", "world_size", "started", "ended", "error", "arguments"),
        *("owner_host", "owner_pid", "owner_created", "seen"),
    },
    "curves": {"curve", "number", "name"},
    "points": {"curve", "step", "time", "value"},
}
"""Columns that a database of any version has."""
SINCE = {"overviews": (4, {"curve", "points"})}
"""Tables since a later version: the version, and their columns."""


def create_schema(connection: sqlite3.Connection) -> None:
    """Create the tables or migrate those of an older version, in one transaction."""
    connection.execute("PRAGMA journal_mode = WAL")  # not possible inside a transaction
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < SCHEMA_VERSION:  # otherwise another kernel was faster
        statements = _SCHEMA if version == 0 else "".join((_FROM_1_TO_2, _FROM_2_TO_3, _FROM_3_TO_4)[version - 1 :])
        for statement in filter(str.strip, statements.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")

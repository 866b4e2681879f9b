"""Read the record of runs in one folder without changing anything on disk; :mod:`.store` writes it."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..errors import CheckpointError, NoRunsError, StoreError
from ..protocol import RUN_PHASES_ENDED, CurveSummary, RunPhase
from ..system.confined import is_run_id
from .curves import Curve
from .database import Database
from .detached_index import DEFAULT_FOLDER
from .points import all_points, points_between, summaries, value_between
from .record import RunRecord
from .record_rows import ForeignRowError, owner_of, record_of

MAX_LISTED = 10_000
"""Maximum number of runs of a folder that are read, the newest."""
UNWRITTEN_ENDS: dict[Path, tuple[RunPhase, str | None, float]] = {}
"""Ends of this process's runs, by their folder, that could not be written yet: phase, error and time."""


class RunReader:
    """Read the runs in one folder. Every method raises a `StoreError` if it cannot.

    Parameters
    ----------
    folder : Path, optional
        By default ``dtrain-runs`` in the working directory, which is where the notebook is.
    """

    def __init__(self, folder: Path = DEFAULT_FOLDER) -> None:
        self.folder = Path(folder).absolute()  # the notebook may change its working directory later
        self._database = Database(self.folder)

    def get_run(self, run_id: str) -> RunRecord:
        """Return one run."""
        with self._database.reading() as connection:
            return self._record(row_of(connection, run_id))

    def list_runs(self) -> list[RunRecord]:
        """Return all runs, the oldest first; none if nothing was written here yet. Invalid rows are left out."""
        return self.list_with_complaints()[0]

    def list_with_complaints(self) -> tuple[list[RunRecord], list[str]]:
        """Return all runs as :meth:`list_runs` does, and a line for each row that was left out."""
        found: list[RunRecord] = []
        complaints: list[str] = []
        if not self._database.exists:
            return found, complaints
        with suppress(NoRunsError), self._database.reading() as connection:
            newest = connection.execute("SELECT number FROM runs ORDER BY number DESC LIMIT ?", (MAX_LISTED,)).fetchall()
            for (number,) in reversed(newest):  # one by one, so that a damaged row costs only its run
                try:
                    found.append(self._record(connection.execute("SELECT * FROM runs WHERE number = ?", (number,)).fetchone()))
                except (ForeignRowError, sqlite3.Error) as error:
                    if isinstance(error, sqlite3.OperationalError) and "decode" not in str(error):  # an error of the file, not of a row
                        raise
                    complaints.append(f"Run {number} of the record cannot be shown: {error}.")
        return found, complaints

    def find_run(self, wanted: str) -> RunRecord | None:
        """Return the run with this id, else the last one with this name, else ``None``."""
        runs = self.list_runs()
        return next((run for run in reversed(runs) if run.run_id == wanted), None) or next(
            (run for run in reversed(runs) if run.name == wanted), None
        )

    def run_called(self, wanted: str) -> RunRecord:
        """Return the run that :meth:`find_run` finds; raise a :exc:`CheckpointError` if there is none."""
        found = self.find_run(wanted)
        if found is None:
            raise CheckpointError(self.no_run(wanted))
        return found

    def no_run(self, wanted: str) -> str:
        """Return the message for a run that :meth:`find_run` does not find, with the names of the last runs."""
        last = ", ".join(run.name for run in self.list_runs()[-3:])
        return f"There is no run {wanted!r} here" + (f"; the last ones are: {last}." if last else ".")

    def names(self, run_id: str) -> list[str]:
        """Return the names of a run's curves."""
        with self._database.reading() as connection:
            number = self._number(connection, run_id)
            return [name for (name,) in connection.execute("SELECT name FROM curves WHERE number = ? ORDER BY curve", (number,))]

    def points(self, run_id: str, name: str) -> Curve:
        """Return all points of one curve by step; an empty curve if there are none."""
        with self._database.reading() as connection:
            number = self._number(connection, run_id)
            return all_points(connection, number, name)

    def view(self, run_id: str, name: str, *, limit: int, first: int | None = None, last: int | None = None) -> tuple[Curve, bool]:
        """Return the points of one curve from step `first` to step `last`, and whether some of them were omitted.

        If there are more than `limit` (at least `LEAST_LIMIT`), it returns the first, the last, the smallest and the largest, and those
        with the smallest and the largest value of each interval of steps (:meth:`~.curve.Curve.thinned` says why). SQLite selects them, so
        a million points are never in memory.
        """
        with self._database.reading() as connection:
            number = self._number(connection, run_id)
            found = connection.execute("SELECT curve FROM curves WHERE number = ? AND name = ?", (number, name)).fetchone()
            return (Curve(), False) if found is None else points_between(connection, found["curve"], first, last, limit=limit)

    def last_point(self, run_id: str, name: str, *, up_to: int | None = None) -> tuple[int, float | None]:
        """Return the last step of the curve `name`, at most `up_to`, and its value, ``None`` if it was not a number; step 0 if none."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT step, value FROM points JOIN curves USING (curve) JOIN runs USING (number)"
                " WHERE run_id = ? AND curves.name = ? AND step <= ? ORDER BY step DESC LIMIT 1",
                (run_id, name, 2**62 if up_to is None else up_to),
            ).fetchone()
            return (0, None) if row is None else (row["step"], row["value"])

    def value_between(self, run_id: str, name: str, step: int) -> float | None:
        """Return the value at a step between or after the points of a curve that grows evenly, as epochs do."""
        with self._database.reading() as connection:
            return value_between(connection, self._number(connection, run_id), name, step)

    def summaries(self) -> dict[int, list[CurveSummary]]:
        """Return the summaries of all runs' curves except those of devices, by run number; empty for a database of an older version."""
        with self._database.reading() as connection:
            return summaries(connection) if self._database.exists else {}

    def close(self) -> None:
        """Close the database. The next call opens it again."""
        self._database.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _record(self, row: sqlite3.Row) -> RunRecord:
        record = record_of(row, self.folder)
        if record.phase not in RUN_PHASES_ENDED and record.folder in UNWRITTEN_ENDS:
            phase, error, ended = UNWRITTEN_ENDS[record.folder]
            return replace(record, phase=phase, error=error, ended=ended)
        owner = owner_of(row)
        if record.phase not in RUN_PHASES_ENDED and owner.is_gone(seen=row["seen"]):
            why = f"The notebook kernel that ran it (process {owner.pid} on {owner.host}) is gone: it was stopped, restarted or died."
            return replace(record, phase="failed", error=why)
        return record

    def _number(self, connection: sqlite3.Connection, run_id: str) -> int:
        number: int = row_of(connection, run_id)["number"]
        return number


def row_of(connection: sqlite3.Connection, run_id: str) -> sqlite3.Row:
    """Return the row of a run; raise a `StoreError` if there is none."""
    if not is_run_id(run_id):
        raise StoreError(f"There is no run {run_id!r} here.")
    row: sqlite3.Row | None = connection.execute("SELECT * FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    if row is None:
        raise StoreError(f"There is no run {run_id!r} here.")
    return row

"""The durable record of runs: one SQLite database for a folder of runs, one folder for each run.

What is written a thousand times (points) goes to the database, in one transaction a batch; what a person may want to
read or copy (the cell, versions, arguments) goes to plain files in the run's own folder, beside its later checkpoints.
The database is in WAL mode without a sync per commit: a crash of the kernel loses nothing, a crash of the machine may
lose the last moments, and several kernels of one host may write to the same folder. Nothing is created until the first
run is written, and every failure (a full disk, a read-only folder) is a :class:`~jupyter_dtrain.errors.StoreError`,
which a run survives.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, StoreError, UsageError
from ..protocol import RUN_PHASES_ENDED, CurveSummary, RunPhase, Value
from ..system.confined import is_run_id, remove_below, write_new
from .curves import OF_DEVICES, Curve
from .database import Database
from .detached_index import DEFAULT_FOLDER
from .overviews import write_overviews
from .owner import Owner
from .points import all_points, cut_points, points_between, summaries, value_between, write_points
from .record import CellOrigin, RunRecord, new_run_id
from .record_rows import ForeignRowError, owner_of, record_of

MAX_LISTED = 10_000
"""Runs of a folder that are looked at, the newest."""
_ends: dict[Path, tuple[RunPhase, str | None, float]] = {}
"""How and when runs of this process have ended, by their folder, that could not be written yet."""


class RunStore:
    """Reads and writes the runs in one folder. Every method raises `StoreError` when it cannot, and changes nothing then.

    Parameters
    ----------
    folder : Path, optional
        By default ``dtrain-runs`` in the working directory, which is where the notebook is. Created, for its owner only,
        with the first run.
    """

    def __init__(self, folder: Path = DEFAULT_FOLDER) -> None:
        self.folder = Path(folder).absolute()  # the notebook may change its working directory later
        self._database = Database(self.folder)

    def create_run(
        self,
        name: str | None,
        cell: str,
        world_size: int,
        arguments: dict[str, Any],
        environment: dict[str, Any],
        origin: CellOrigin | None = None,
        *,
        functions: Mapping[str, str] | None = None,
        hyperparameters: Mapping[str, Value] | None = None,
    ) -> str:
        """Record the start of a run that this process owns, of the text of a cell.

        Parameters
        ----------
        name : str or None
            What the user called it; by default ``run-1``, ``run-2``, ….
        world_size : int
            Number of ranks.
        arguments : dict
            The options of the run, as JSON can say them.
        environment : dict
            Package versions, seeds and whatever else it takes to run it again.
        origin : CellOrigin, optional
            Where the cell is.
        functions : mapping of str to str, optional
            The texts of functions and classes that it uses, by name.
        hyperparameters : mapping, optional
            Those that are known already.

        Returns
        -------
        str
            The run's id, for example ``2026-11-21-153012-digits``. Ids sort by time.
        """
        started = time.time()
        owner = Owner.this_process()
        with self._database.transaction(create=True) as connection:
            (number,) = connection.execute("SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'runs'").fetchone()
            name = f"run-{number}" if name is None else name
            folder = self._create_folder(new_run_id(name, started))
            try:
                write_new(folder / "cell.py", cell)
                about = {
                    "run_id": folder.name,
                    "name": name,
                    "world_size": world_size,
                    "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(started)),
                    "host": owner.host,
                    "arguments": arguments,
                    "environment": environment,
                    "origin": asdict(origin or CellOrigin()),
                }
                write_new(folder / "run.json", json.dumps(about, indent=2, default=str) + "\n")
                if functions:
                    write_new(folder / "functions.json", json.dumps(dict(functions), indent=2) + "\n")
                connection.execute(
                    "INSERT INTO runs (run_id, name, phase, world_size, started, arguments, hyperparameters, owner_host, owner_pid,"
                    " owner_created, seen) VALUES (?, ?, 'running', ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(folder.name, name, world_size, started, json.dumps(arguments, default=str), json.dumps(hyperparameters or {})),
                        *(owner.host, owner.pid, owner.created, started),
                    ),
                )
            except BaseException:
                with suppress(OSError):
                    remove_below(self.folder, folder.name)
                raise
            return folder.name

    def add_points(self, run_id: str, curves: Iterable[tuple[str, Curve]]) -> None:
        """Append points to curves, each with its name: all of them or, if there is an error, none."""
        with self._database.transaction() as connection:
            number = self._number(connection, run_id)
            for name, points in curves:
                connection.execute("INSERT OR IGNORE INTO curves (number, name) VALUES (?, ?)", (number, name))
                (curve,) = connection.execute("SELECT curve FROM curves WHERE number = ? AND name = ?", (number, name)).fetchone()
                write_points(connection, curve, points)
                if points.time:
                    connection.execute("UPDATE runs SET seen = max(seen, ?) WHERE number = ?", (points.time[-1], number))

    def cut_curves(self, run_id: str, step: int) -> dict[str, int]:
        """Take back the points after `step`, but those of devices, which are about time; return how many each curve has lost."""
        with self._database.transaction() as connection:
            wanted = f"number = ? AND name NOT LIKE '{OF_DEVICES}%'"
            curves = connection.execute(f"SELECT curve, name FROM curves WHERE {wanted}", (self._number(connection, run_id),)).fetchall()
            return {name: cut_points(connection, curve, step) for curve, name in curves}

    def finish_run(self, run_id: str, phase: RunPhase, error: str | None = None) -> None:
        """Record that a run has ended as `phase`, one of `RUN_PHASES_ENDED`.

        Where that cannot be written, this process knows it all the same, and writes it with the next end.
        """
        if phase not in RUN_PHASES_ENDED:
            raise ValueError(f"a run does not end as {phase!r}")
        _ends[self.folder / run_id] = phase, error, time.time()
        # A copy: other threads end their runs meanwhile.
        ends = {folder: end for folder, end in _ends.copy().items() if folder.parent == self.folder}
        with self._database.transaction() as connection:
            self._number(connection, run_id)
            update = "UPDATE runs SET phase = ?, error = ?, ended = ? WHERE run_id = ?"
            connection.executemany(update, [(*end, folder.name) for folder, end in ends.items()])
        for folder in ends:
            _ends.pop(folder, None)

    def keep_overviews(self, run_id: str, curves: Mapping[str, Curve]) -> None:
        """Keep `curves`, thinned to what a view gets, by name: what is asked of them as a whole is then answered without their points."""
        with self._database.transaction() as connection:
            write_overviews(connection, self._number(connection, run_id), curves)

    def reopen_run(self, run_id: str, world_size: int) -> None:
        """Record that this process goes on with a run that has ended.

        Raises
        ------
        UsageError
            Another process goes on with it already: of several that ask at the same moment, one gets it.
        """
        owner = Owner.this_process()
        with self._database.transaction() as connection:
            record = self._record(_one(connection, run_id))
            if record.phase not in RUN_PHASES_ENDED:
                raise UsageError(f"{run_id} is still running in another process: stop it there first.")
            _ends.pop(record.folder, None)
            connection.execute(
                "UPDATE runs SET phase = 'running', error = NULL, ended = NULL, world_size = ?, owner_host = ?, owner_pid = ?,"
                " owner_created = ?, seen = ? WHERE number = ?",
                (world_size, owner.host, owner.pid, owner.created, time.time(), record.number),
            )

    def get_run(self, run_id: str) -> RunRecord:
        """Return one run."""
        with self._database.reading() as connection:
            return self._record(_one(connection, run_id))

    def list_runs(self) -> list[RunRecord]:
        """Return all runs, the oldest first; none if nothing was ever written here. Rows that are none of ours are left out."""
        return self.list_with_complaints()[0]

    def list_with_complaints(self) -> tuple[list[RunRecord], list[str]]:
        """Return what :meth:`list_runs` does, and a line for each row that was left out."""
        found: list[RunRecord] = []
        complaints: list[str] = []
        if not self._database.exists:
            return found, complaints
        with self._database.reading() as connection:
            newest = connection.execute("SELECT number FROM runs ORDER BY number DESC LIMIT ?", (MAX_LISTED,)).fetchall()
            for (number,) in reversed(newest):  # each by itself: what is wrong with one costs that one
                try:
                    found.append(self._record(connection.execute("SELECT * FROM runs WHERE number = ?", (number,)).fetchone()))
                except (ForeignRowError, sqlite3.Error) as error:
                    if isinstance(error, sqlite3.OperationalError) and "decode" not in str(error):  # about the file, and not about a row
                        raise
                    complaints.append(f"Run {number} of the record cannot be shown: {error}.")
        return found, complaints

    def find_run(self, wanted: str) -> RunRecord | None:
        """Return the run of this id, or the last one of this name."""
        runs = self.list_runs()
        return next((run for run in reversed(runs) if run.run_id == wanted), None) or next(
            (run for run in reversed(runs) if run.name == wanted), None
        )

    def run_called(self, wanted: str) -> RunRecord:
        """Return what :meth:`find_run` does; a :exc:`CheckpointError` where it finds none."""
        found = self.find_run(wanted)
        if found is None:
            raise CheckpointError(self.no_run(wanted))
        return found

    def no_run(self, wanted: str) -> str:
        """Return what to say where :meth:`find_run` finds none, with the runs that there are."""
        last = ", ".join(run.name for run in self.list_runs()[-3:])
        return f"There is no run {wanted!r} here" + (f"; the last ones are: {last}." if last else ".")

    def names(self, run_id: str) -> list[str]:
        """Return the names of a run's curves."""
        with self._database.reading() as connection:
            number = self._number(connection, run_id)
            return [name for (name,) in connection.execute("SELECT name FROM curves WHERE number = ? ORDER BY curve", (number,))]

    def points(self, run_id: str, name: str) -> Curve:
        """Return all points of one curve in the order in which they came; an empty curve if there are none."""
        with self._database.reading() as connection:
            number = self._number(connection, run_id)
            return all_points(connection, number, name)

    def view(self, run_id: str, name: str, *, limit: int, first: int | None = None, last: int | None = None) -> tuple[Curve, bool]:
        """Return the points of one curve from step `first` to step `last`, and whether some of them were left out.

        Where there are more than `limit` (at least `LEAST_LIMIT`), the first, the last, the smallest and the largest are returned, and
        those with the smallest and the largest value of each of a number of stretches of steps (:meth:`~.curve.Curve.thinned` says why).
        SQLite chooses them, so a million points are never in memory.
        """
        with self._database.reading() as connection:
            number = self._number(connection, run_id)
            found = connection.execute("SELECT curve FROM curves WHERE number = ? AND name = ?", (number, name)).fetchone()
            return (Curve(), False) if found is None else points_between(connection, found["curve"], first, last, limit=limit)

    def last_point(self, run_id: str, name: str, *, up_to: int | None = None) -> tuple[int, float | None]:
        """Return the last step of the curve `name`, at most `up_to`, and its value, ``None`` where it was not a number; step 0 if none."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT step, value FROM points JOIN curves USING (curve) JOIN runs USING (number)"
                " WHERE run_id = ? AND curves.name = ? AND step <= ? ORDER BY step DESC LIMIT 1",
                (run_id, name, 2**62 if up_to is None else up_to),
            ).fetchone()
            return (0, None) if row is None else (row["step"], row["value"])

    def value_between(self, run_id: str, name: str, step: int) -> float | None:
        """Return the value of a curve that grows evenly, as epochs do, at a step between its points or after the last."""
        with self._database.reading() as connection:
            return value_between(connection, self._number(connection, run_id), name, step)

    def set_hyperparameters(self, run_id: str, values: Mapping[str, Value]) -> None:
        """Give a run hyperparameters in the place of those that it has."""
        with self._database.transaction() as connection:
            update = "UPDATE runs SET hyperparameters = ? WHERE number = ?"
            connection.execute(update, (json.dumps(dict(values), allow_nan=False), self._number(connection, run_id)))

    def summaries(self) -> dict[int, list[CurveSummary]]:
        """Return all runs' curves in short but those of devices, by the number of the run; nothing where an older version has written."""
        with self._database.reading() as connection:
            return summaries(connection) if self._database.exists else {}

    def rename_run(self, run_id: str, name: str) -> None:
        """Call a run `name`. Its id and its folder stay as they are."""
        if not name.strip():
            raise StoreError("A run needs a name.")
        with self._database.transaction() as connection:
            connection.execute("UPDATE runs SET name = ? WHERE number = ?", (name.strip(), self._number(connection, run_id)))

    def tag_run(self, run_id: str, tags: list[str]) -> None:
        """Give a run `tags` in the place of those that it has."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE runs SET tags = ? WHERE number = ?", (json.dumps(tags), self._number(connection, run_id)))

    def delete_run(self, run_id: str) -> None:
        """Delete a run that has ended: its row, its points and its folder. Where a link has the folder's place, the link goes alone."""
        with self._database.transaction() as connection:
            record = self._record(_one(connection, run_id))
            if record.phase not in RUN_PHASES_ENDED:
                raise StoreError(f"Run {run_id} is still running: stop it first.")
            connection.execute("DELETE FROM runs WHERE number = ?", (record.number,))
            remove_below(self.folder, run_id)

    def close(self) -> None:
        """Let go of the database. The next call opens it again."""
        self._database.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _record(self, row: sqlite3.Row) -> RunRecord:
        record = record_of(row, self.folder)
        if record.phase not in RUN_PHASES_ENDED and record.folder in _ends:
            phase, error, ended = _ends[record.folder]
            return replace(record, phase=phase, error=error, ended=ended)
        owner = owner_of(row)
        if record.phase not in RUN_PHASES_ENDED and owner.is_gone(seen=row["seen"]):
            why = f"The notebook kernel that ran it (process {owner.pid} on {owner.host}) is gone: it was stopped, restarted or died."
            return replace(record, phase="failed", error=why)
        return record

    def _number(self, connection: sqlite3.Connection, run_id: str) -> int:
        number: int = _one(connection, run_id)["number"]
        return number

    def _create_folder(self, wanted: str) -> Path:
        for attempt in range(1, 1000):
            folder = self.folder / (wanted if attempt == 1 else f"{wanted}-{attempt}")
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return folder
        raise StoreError(f"There are too many runs named {wanted} in {self.folder}.")


def _one(connection: sqlite3.Connection, run_id: str) -> sqlite3.Row:
    if not is_run_id(run_id):
        raise StoreError(f"There is no run {run_id!r} here.")
    row: sqlite3.Row | None = connection.execute("SELECT * FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    if row is None:
        raise StoreError(f"There is no run {run_id!r} here.")
    return row

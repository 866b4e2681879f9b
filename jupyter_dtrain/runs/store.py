"""Write the durable record of runs: one SQLite database for a folder of runs, one folder for each run.

Points, of which there are many, go to the database, in one transaction for each batch. What a person may want to read or copy (the cell,
versions, arguments) goes to plain files in the run's own folder, where its checkpoints are too. The database is in WAL mode without a sync
for each commit: a crash of the kernel loses nothing, a crash of the machine may lose the last moments, and several kernels of one host may
write to the same folder. Nothing is created until the first run is written. Every failure (a full disk, a read-only folder) is a
:class:`~jupyter_dtrain.errors.StoreError`, which a run survives.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import StoreError, UsageError
from ..protocol import RUN_PHASES_ENDED, RunPhase, Value
from ..system.confined import remove_below, write_new
from .curves import OF_DEVICES, Curve
from .overviews import write_overviews
from .owner import Owner
from .points import cut_points, write_points
from .record import CellOrigin, new_run_id
from .run_reader import UNWRITTEN_ENDS, RunReader, row_of


class RunStore(RunReader):
    """Read and write the runs in one folder. Every method raises a `StoreError` if it fails, and changes nothing then.

    Parameters
    ----------
    folder : Path, optional
        By default ``dtrain-runs`` in the working directory, which is where the notebook is. Created with mode 0700, with the first run.
    """

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
        """Record the start of a run that this process owns.

        Parameters
        ----------
        name : str or None
            The user's name for it; by default ``run-1``, ``run-2``, ….
        cell : str
            The cell's text.
        world_size : int
            Number of ranks.
        arguments : dict
            Options of the run, as JSON values.
        environment : dict
            Package versions, seeds and other facts that are needed to run it again.
        origin : CellOrigin, optional
            Where the cell is.
        functions : mapping of str to str, optional
            Texts of the functions and classes that the cell uses, by name.
        hyperparameters : mapping, optional
            Hyperparameters that are known already.

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
        """Append points to curves, each with its name; on an error, append none."""
        with self._database.transaction() as connection:
            number = self._number(connection, run_id)
            for name, points in curves:
                connection.execute("INSERT OR IGNORE INTO curves (number, name) VALUES (?, ?)", (number, name))
                (curve,) = connection.execute("SELECT curve FROM curves WHERE number = ? AND name = ?", (number, name)).fetchone()
                write_points(connection, curve, points)
                if points.time:
                    connection.execute("UPDATE runs SET seen = max(seen, ?) WHERE number = ?", (points.time[-1], number))

    def cut_curves(self, run_id: str, step: int) -> dict[str, int]:
        """Delete the points after `step`, except those of devices, which are over time; return their number for each curve."""
        with self._database.transaction() as connection:
            wanted = f"number = ? AND name NOT LIKE '{OF_DEVICES}%'"
            curves = connection.execute(f"SELECT curve, name FROM curves WHERE {wanted}", (self._number(connection, run_id),)).fetchall()
            return {name: cut_points(connection, curve, step) for curve, name in curves}

    def finish_run(self, run_id: str, phase: RunPhase, error: str | None = None) -> None:
        """Record that a run has ended as `phase`, one of `RUN_PHASES_ENDED`.

        If that cannot be written, this process keeps it, and writes it with the next end.
        """
        if phase not in RUN_PHASES_ENDED:
            raise ValueError(f"a run does not end as {phase!r}")
        UNWRITTEN_ENDS[self.folder / run_id] = phase, error, time.time()
        # A copy, as other threads may end their runs meanwhile.
        ends = {folder: end for folder, end in UNWRITTEN_ENDS.copy().items() if folder.parent == self.folder}
        with self._database.transaction() as connection:
            self._number(connection, run_id)
            update = "UPDATE runs SET phase = ?, error = ?, ended = ? WHERE run_id = ?"
            connection.executemany(update, [(*end, folder.name) for folder, end in ends.items()])
        for folder in ends:
            UNWRITTEN_ENDS.pop(folder, None)

    def keep_overviews(self, run_id: str, curves: Mapping[str, Curve]) -> None:
        """Store overviews of `curves`, by name, so that views of complete curves need not read their points."""
        with self._database.transaction() as connection:
            write_overviews(connection, self._number(connection, run_id), curves)

    def reopen_run(self, run_id: str, world_size: int) -> None:
        """Record that this process continues an ended run.

        Raises
        ------
        UsageError
            Another process continues it already. Of several that try at the same moment, one succeeds.
        """
        owner = Owner.this_process()
        with self._database.transaction() as connection:
            record = self._record(row_of(connection, run_id))
            if record.phase not in RUN_PHASES_ENDED:
                raise UsageError(f"{run_id} is still running in another process: stop it there first.")
            UNWRITTEN_ENDS.pop(record.folder, None)
            connection.execute(
                "UPDATE runs SET phase = 'running', error = NULL, ended = NULL, world_size = ?, owner_host = ?, owner_pid = ?,"
                " owner_created = ?, seen = ? WHERE number = ?",
                (world_size, owner.host, owner.pid, owner.created, time.time(), record.number),
            )

    def set_hyperparameters(self, run_id: str, values: Mapping[str, Value]) -> None:
        """Replace a run's hyperparameters."""
        with self._database.transaction() as connection:
            update = "UPDATE runs SET hyperparameters = ? WHERE number = ?"
            connection.execute(update, (json.dumps(dict(values), allow_nan=False), self._number(connection, run_id)))

    def rename_run(self, run_id: str, name: str) -> None:
        """Rename a run. Its id and its folder are unchanged."""
        if not name.strip():
            raise StoreError("A run needs a name.")
        with self._database.transaction() as connection:
            connection.execute("UPDATE runs SET name = ? WHERE number = ?", (name.strip(), self._number(connection, run_id)))

    def tag_run(self, run_id: str, tags: list[str]) -> None:
        """Replace a run's tags."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE runs SET tags = ? WHERE number = ?", (json.dumps(tags), self._number(connection, run_id)))

    def delete_run(self, run_id: str) -> None:
        """Delete the row, points and folder of an ended run. If a link is in the folder's place, only the link is deleted."""
        with self._database.transaction() as connection:
            record = self._record(row_of(connection, run_id))
            if record.phase not in RUN_PHASES_ENDED:
                raise StoreError(f"Run {run_id} is still running: stop it first.")
            connection.execute("DELETE FROM runs WHERE number = ?", (record.number,))
            remove_below(self.folder, run_id)

    def _create_folder(self, wanted: str) -> Path:
        for attempt in range(1, 1000):
            folder = self.folder / (wanted if attempt == 1 else f"{wanted}-{attempt}")
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return folder
        raise StoreError(f"There are too many runs named {wanted} in {self.folder}.")

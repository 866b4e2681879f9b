"""The record of runs for a user's own code: a table of all, one run with its curves.

Values are those of the database, which the sidebar draws from: equal to the bit, and whole where the sidebar's are thinned. A run that
goes on is there up to its last second.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..protocol import CurveSummary, Value
from .curves import OF_DEVICES
from .record import DEFAULT_FOLDER, RunRecord
from .store import RunStore


@dataclass(frozen=True)
class RecordedRun:
    """One run of the record.

    Attributes
    ----------
    record : RunRecord
        Its name, phase, times, arguments and hyperparameters, which can be asked for here as well: ``run.name``.
    folder : Path
        Of all runs.
    """

    record: RunRecord
    folder: Path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "record":
            raise AttributeError(name)
        return getattr(self.record, name)

    def __repr__(self) -> str:
        return f"<{self.record.name}: {self.record.phase}, {self.record.run_id}>"

    @property
    def hyperparameters(self) -> dict[str, Value]:
        """What was found in the cell's objects, and what it gave by name."""
        return dict(self.record.hyperparameters or {})

    @property
    def cell(self) -> str:
        """The text of the cell."""
        return self.record.cell()

    @property
    def curves(self) -> list[str]:
        """The names of all curves, those of devices among them: ``device/0/utilization``."""
        with closing(RunStore(self.folder)) as store:
            return store.names(self.record.run_id)

    def points(self, curve: str) -> dict[str, list[Any]]:
        """Return the points of a curve as columns: ``step``, ``time`` in seconds since the epoch, ``value``."""
        with closing(RunStore(self.folder)) as store:
            return self._points(store, curve)

    def history(self, curve: str | None = None) -> Any:
        """Return the points of a curve, by default of all but those of devices, as a pandas DataFrame.

        A row is a point, with the name of its ``curve``, its ``step``, ``time`` in seconds since the epoch, and ``value``.

        Raises
        ------
        UsageError
            pandas is not installed, or there is no such curve.
        """
        pandas = _pandas()
        with closing(RunStore(self.folder)) as store:
            names = store.names(self.record.run_id)
            if curve is not None and curve not in names:
                raise UsageError(f"{self.record.name} has no curve {curve!r}; it has {', '.join(names) or 'none'}.")
            wanted = [curve] if curve is not None else [name for name in names if not name.startswith(OF_DEVICES)]
            columns: dict[str, list[Any]] = {"curve": [], "step": [], "time": [], "value": []}
            for name in wanted:
                points = self._points(store, name)
                columns["curve"] += [name] * len(points["step"])
                for column, values in points.items():
                    columns[column] += values
        types = {"curve": "object", "step": "int64", "time": "float64", "value": "float64"}
        return pandas.DataFrame(columns).astype(types)

    def _points(self, store: RunStore, name: str) -> dict[str, list[Any]]:
        found = store.points(self.record.run_id, name)
        return {"step": list(found.step), "time": list(found.time), "value": list(found.value)}


def find_run(run: str | None = None, folder: str | Path | None = None) -> RecordedRun:
    """Return a recorded run.

    Parameters
    ----------
    run : str, optional
        Its id, or its name: the last one of this name. By default the last run.
    folder : path, optional
        Where runs are recorded; by default ``dtrain-runs`` in the working directory.

    Raises
    ------
    UsageError
        There is none.

    Examples
    --------
    ``jupyter_dtrain.find_run("digits").history("loss").plot("step", "value")``
    """
    where = _folder(folder)
    with closing(RunStore(where)) as store:
        if run is not None:
            found = store.find_run(run)
        else:
            found = next(reversed(store.list_runs()), None)
        if found is None:
            raise UsageError(store.no_run(run) if run is not None else f"No runs are recorded in {where}.")
    return RecordedRun(found, where)


def table_of(folder: str | Path | None = None) -> Any:
    """Return the runs of a folder as a DataFrame; the package's own docstring says more."""
    pandas = _pandas()
    with closing(RunStore(_folder(folder))) as store:
        runs = store.list_runs()
        metrics = store.summaries() if runs else {}
    rows = [_row(run, metrics.get(run.number, [])) for run in runs]
    frame = pandas.DataFrame(rows, columns=[*dict.fromkeys(name for row in rows for name in row)] or [*_facts(None)])
    frame["started"] = pandas.to_datetime(frame["started"], unit="s", utc=True)
    return frame


def _row(run: RunRecord, metrics: Sequence[CurveSummary]) -> dict[str, Any]:
    values = {metric.name: math.nan if metric.last is None else metric.last for metric in metrics}
    row = _facts(run)
    values = {f"metric.{name}" if name in row else name: value for name, value in values.items()}
    for name, value in (run.hyperparameters or {}).items():
        row[f"config.{name}" if name in row or name in values else name] = value
    return row | values


def _facts(run: RunRecord | None) -> dict[str, Any]:
    """Return what is known of every run, by the names of columns."""
    return {
        "run_id": run and run.run_id,
        "name": run and run.name,
        "state": run and run.phase,
        "engines": run and run.world_size,
        "started": run and run.started,
        "seconds": None if run is None or run.ended is None else run.ended - run.started,
        "tags": run and ", ".join(run.tags),
        "error": run and run.error,
    }


def _folder(folder: str | Path | None) -> Path:
    return Path(folder if folder is not None else DEFAULT_FOLDER).absolute()


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise UsageError(
            "A table of runs is a pandas DataFrame, and pandas is not installed: `pip install pandas`. "
            "`jupyter_dtrain.find_run(NAME).points(CURVE)` returns a curve's columns without it."
        ) from None

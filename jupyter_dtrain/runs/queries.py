"""Find recorded runs for the user's own code: one by its name, or a table of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..protocol import CurveSummary
from .data_frames import import_pandas
from .detached_index import DEFAULT_FOLDER
from .record import RunRecord
from .recorded import RecordedRun
from .store import RunStore


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
    """Return the runs of a folder as a DataFrame; see the package's docstring."""
    pandas = import_pandas()
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
    """Return the fields that every run has, by column."""
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

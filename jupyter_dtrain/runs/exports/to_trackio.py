"""Write a run for trackio: a row for each step with the values of all its curves, in the project's database on this machine."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import Any

from ...errors import UsageError
from .exported import ExportedRun, library


def write(run: ExportedRun, *, project: str) -> str:
    """Write `run` as a run of `project`, replacing its earlier copy; return its id there."""
    storage: Any = library("trackio.sqlite_storage").SQLiteStorage
    if "run_id" not in inspect.signature(storage.bulk_log).parameters:
        raise UsageError("This version of trackio identifies runs only by name, and two runs may have one name: `pip install -U trackio`.")
    record = run.record
    rows = list(run.by_step())
    if not rows:
        raise UsageError(f"{record.name} has no points, and trackio knows no run without one.")
    storage.delete_run(project, record.name, run_id=record.run_id)
    storage.bulk_log(
        project=project,
        run=record.name,
        metrics_list=[values for _, _, values in rows],
        steps=[step for step, _, _ in rows],
        timestamps=[datetime.fromtimestamp(when, UTC).isoformat() for _, when, _ in rows],
        config={**run.hyperparameters, "dtrain": run.facts, "tags": record.tags},
        run_id=record.run_id,
    )
    return record.run_id

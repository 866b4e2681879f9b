"""Return points of runs as pandas DataFrames. Only this module imports pandas, which is optional."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import UsageError
from .curves import OF_DEVICES
from .record import RunRecord
from .store import RunStore


def import_pandas() -> Any:
    """Return pandas; raise a `UsageError` if it is not installed."""
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise UsageError(
            "A table of runs is a pandas DataFrame, and pandas is not installed: `pip install pandas`. "
            "`jupyter_dtrain.find_run(NAME).points(CURVE)` returns a curve's columns without it."
        ) from None


def points_of(run: RunRecord, store: RunStore, curve: str | None) -> Any:
    """Return the points of a run's curve as a DataFrame; without `curve`, of all curves except those of devices."""
    pandas = import_pandas()
    names = store.names(run.run_id)
    if curve is not None and curve not in names:
        raise UsageError(f"{run.name} has no curve {curve!r}; it has {', '.join(names) or 'none'}.")
    wanted = [curve] if curve is not None else [name for name in names if not name.startswith(OF_DEVICES)]
    columns: dict[str, list[Any]] = {"curve": [], "step": [], "time": [], "value": []}
    for name in wanted:
        points = columns_of(store, run.run_id, name)
        columns["curve"] += [name] * len(points["step"])
        for column, values in points.items():
            columns[column] += values
    types = {"curve": "object", "step": "int64", "time": "float64", "value": "float64"}
    return pandas.DataFrame(columns).astype(types)


def columns_of(store: RunStore, run_id: str, curve: str) -> dict[str, list[Any]]:
    """Return the points of a curve as columns: ``step``, ``time`` in seconds since the epoch, ``value``."""
    found = store.points(run_id, curve)
    return {"step": list(found.step), "time": list(found.time), "value": list(found.value)}

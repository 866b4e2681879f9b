"""The runs of MLflow that are active: begun in a cell of the notebook or on an engine, they are the same ones for the next cell.

Which they are, each process knows by itself; what is logged goes to a store that all processes reach.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from typing import Any

NAME = "mlflow.active_run"  # among the settings that go along
FLUENT = "mlflow.tracking.fluent"


def active_runs() -> dict[str, Any] | None:
    """Return the active runs, the outermost first, and the experiment that others begin in; ``None``: nothing of it was chosen."""
    fluent: Any = sys.modules.get(FLUENT)
    if fluent is None:
        return None
    found = {"runs": [pickle.dumps(run) for run in stack_of(fluent)], "experiment": fluent._active_experiment_id}
    return found if any(found.values()) else None


def set_active_runs(active: dict[str, Any] | None) -> None:
    """Make them those of this process, without a word to the store: nothing begins or ends."""
    runs, experiment = (active["runs"], active["experiment"]) if active is not None else ([], None)
    fluent: Any = importlib.import_module(FLUENT) if runs else sys.modules.get(FLUENT)
    if fluent is not None:
        stack_of(fluent)[:] = [pickle.loads(run) for run in runs]
        fluent._active_experiment_id = experiment


def stack_of(fluent: Any) -> list[Any]:
    """Return the active runs of this thread, the outermost first, to be changed."""
    stack = fluent._active_run_stack
    runs: list[Any] = stack if isinstance(stack, list) else stack.get()  # a list in old versions, then one for each thread
    return runs

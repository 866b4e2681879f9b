"""``jupyter_dtrain.load_checkpoint``: what a run held at a checkpoint, in any notebook, without engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import CheckpointError, UsageError
from .runs.record import DEFAULT_FOLDER, RunRecord
from .runs.store import RunStore
from .supervision.checkpoint import Wanted, step_of
from .supervision.checkpoints import CheckpointFolder
from .supervision.saved import read_values


def load_checkpoint(
    run: str | None = None,
    step: Wanted | None = None,
    *,
    folder: Path | str = DEFAULT_FOLDER,
    trust: bool = False,
    **into: Any,
) -> dict[str, Any]:
    """Return the values of a run's names as they were at a checkpoint, on the CPU.

    Parameters
    ----------
    run : str, optional
        Its id or name; by default the last run that has a checkpoint.
    step : int or "best", optional
        Of the checkpoint, or ``"best"`` for that of a run with ``--best``; by default the newest that is intact.
    folder : path
        Where the runs are.
    trust : bool
        Read it whoever has written it, which can run any code.
    **into
        Objects with a ``load_state_dict`` that take over the state of the value of the same name.

    Returns
    -------
    dict of str to object

    Raises
    ------
    CheckpointError
        There is no such checkpoint, or somebody else has written it.
    UsageError
        An object cannot take over a state.

    Examples
    --------
    ``dtrain.load_checkpoint("digits", 120, model=model, optimizer=optimizer)``
    """
    for name, obj in into.items():
        if not hasattr(obj, "load_state_dict"):
            raise UsageError(f"{name}={type(obj).__name__}: only what has a load_state_dict takes over a state.")
    store = RunStore(Path(folder))
    try:
        record = _record(store, run)
    finally:
        store.close()
    checkpoints = CheckpointFolder(record.folder)
    wanted = step_of(step, checkpoints.newest_first(), run=record.name)
    values = read_values(checkpoints, wanted, trusted=trust).values
    for name in into:
        if not hasattr(values.get(name), "state_dict"):
            there = ", ".join(sorted(other for other, value in values.items() if hasattr(value, "state_dict")))
            raise CheckpointError(f"The checkpoint has no {name!r} with a state; those that have one: {there or 'none'}.")
    for name, obj in into.items():
        obj.load_state_dict(values[name].state_dict())
    return values


def _record(store: RunStore, run: str | None) -> RunRecord:
    if run is not None:
        return store.run_called(run)
    for record in reversed(store.list_runs()):
        if CheckpointFolder(record.folder).newest_first():
            return record
    raise CheckpointError("There is no run here that has a checkpoint.")

"""The sidebar's checkpoint commands: list, pin, delete, export. They work during and after a run."""

from __future__ import annotations

import json
import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, UsageError
from ..protocol import CheckpointInfo, Command, Reply
from ..runs.curves import EPOCH, LEARNING_RATE, LOSS
from ..runs.record import RunRecord
from ..runs.store import RunStore
from ..system.atomic_files import write_whole
from ..system.confined import read_below
from .folder import CheckpointFolder
from .load import export_models, read_values
from .metadata import Checkpoint

FACTS = "facts.json"
"""File in the run's folder: loss and epoch of checkpoints whose steps a roll-back has removed from the record."""
LAG = timedelta(seconds=3)
"""Longest time that a checkpoint is ahead of the record, which is written about once a second."""


class CheckpointShelf:
    """The checkpoints of all runs in a folder, for the sidebar's commands.

    Parameters
    ----------
    folder : Path
        Where the runs are.
    """

    def __init__(self, folder: Path) -> None:
        self._store = RunStore(folder)

    def answer(self, command: Command) -> Reply:
        """Carry out a command about checkpoints.

        Raises
        ------
        StoreError, CheckpointError, UsageError
            The command cannot be carried out.
        """
        try:
            return self._answer(command)
        except OSError as error:
            raise CheckpointError(f"{command.name} cannot be done: {error}.") from error

    def _answer(self, command: Command) -> Reply:
        if command.run_id is None:
            raise UsageError("Which run? The command names none.")
        record = self._store.get_run(command.run_id)
        trusting = f'`jupyter_dtrain.load_checkpoint("{record.run_id}", …, trust=True)` loads it anyway'
        folder = CheckpointFolder(record.folder, trusting=trusting)
        if command.name == "list_checkpoints":
            best = folder.best()
            found = [self._info(record, checkpoint, best) for checkpoint in folder.newest_first()]
            return Reply(id=command.id, ok=True, message="", checkpoints=found, free_bytes=folder.free())
        if command.step is None:
            raise UsageError("Which checkpoint? The command names no step.")
        step = command.step
        match command.name:
            case "pin_checkpoint":
                folder.pin(step, bool(command.pinned))
                what = "is kept until it is deleted" if command.pinned else "is kept as long as it is among the last"
                return Reply(id=command.id, ok=True, message=f"The checkpoint of step {step} {what}.")
            case "delete_checkpoint":
                folder.delete(step)
                return Reply(id=command.id, ok=True, message=f"The checkpoint of step {step} is deleted.")
            case "export_checkpoint":
                paths = export_models(read_values(folder, step), record.folder / "exports" / f"step-{step:06d}")
                names = ", ".join(path.name for path in paths)
                return Reply(id=command.id, ok=True, message=f"Written to {paths[0].parent}: {names}.", paths=[str(path) for path in paths])
            case _:
                raise UsageError(f"{command.name} is not a checkpoint command.")

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    def _info(self, record: RunRecord, checkpoint: Checkpoint, best: Checkpoint | None) -> CheckpointInfo:
        step, measured = checkpoint.step, checkpoint.measured
        loss, epoch = _facts_at(self._store, record.run_id, step)
        recorded = max(self._store.last_point(record.run_id, name)[0] for name in (LOSS, LEARNING_RATE))  # a step may have no loss
        if recorded < step and time.time() - checkpoint.time > LAG.total_seconds():
            # The run has gone back to an earlier step, which removed this step from the record.
            kept = _kept_facts(record.folder).get(str(step), {})
            loss, epoch = kept.get(LOSS), kept.get(EPOCH)
        return CheckpointInfo(
            run_id=record.run_id,
            step=step,
            place=checkpoint.place,
            epoch=epoch,
            loss=loss,
            num_bytes=checkpoint.num_bytes,
            time=checkpoint.time,
            world_size=checkpoint.world_size,
            pinned=checkpoint.pinned,
            best=checkpoint == best,
            metric_name=None if measured is None else measured.metric.name,
            metric=None if measured is None else measured.value,
        )


# The record of a run has the loss and epoch of each checkpoint. A roll-back removes later steps from the record.


def keep_facts(run_folder: Path, step: int, store: RunStore) -> None:
    """Save what the record says of checkpoints after `step`, before the run goes back to `step`."""
    kept = _kept_facts(run_folder)
    for checkpoint in CheckpointFolder(run_folder).newest_first():
        if checkpoint.step > step:
            kept[str(checkpoint.step)] = dict(zip((LOSS, EPOCH), _facts_at(store, run_folder.name, checkpoint.step), strict=True))
    write_whole(run_folder / FACTS, json.dumps(kept).encode())


def _facts_at(store: RunStore, run_id: str, step: int) -> tuple[float | None, float | None]:
    """Return the loss and epoch of a step, as far as recorded."""
    return store.last_point(run_id, LOSS, up_to=step)[1], store.value_between(run_id, EPOCH, step)


def _kept_facts(run_folder: Path) -> dict[str, dict[str, float | None]]:
    """Return the saved facts by step. Validates the file, which anybody may have written."""
    try:
        found = json.loads(read_below(run_folder.parent, run_folder.name, FACTS))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {step: {name: _number(facts.get(name)) for name in (LOSS, EPOCH)} for step, facts in found.items() if isinstance(facts, dict)}


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None

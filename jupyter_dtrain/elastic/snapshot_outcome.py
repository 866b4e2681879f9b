"""Restore the outcome of rank 0 from its part of the last snapshot, if the rank itself has returned none.

The snapshot is also used if rank 0 has returned but other ranks were lost with their shards of optimizer state: weights and
moments must be of one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch

from ..checkpoint.snapshot_index import ON_ITS_WAY, SnapshotKeeper
from ..engine.snapshot.snapshot_files import assembled
from ..engine.task import Outcome, Task
from ..transport.blob_store import BlobFolder
from .worker_group import WorkerResult


def fill_from_snapshot(ends: Sequence[WorkerResult], keeper: SnapshotKeeper, task: Task) -> None:
    """Set the outcome of rank 0 from the newest snapshot, if rank 0 is gone or lacks shards of optimizer state."""
    first = ends[0].outcome if ends else None
    if ends and (first is None or (first.states_missing and not first.from_snapshot)):
        keeper.commit(ON_ITS_WAY)
        # If files were removed or the disk is full, the caller must still report how the run ended.
        with suppress(OSError):
            found = outcome_of(keeper, task)
            if first is None:
                ends[0].outcome = found
            elif found is not None:
                ends[0].outcome = replace(found, failure=first.failure, held=first.held, states_missing=True)


def stop_there(ends: Sequence[WorkerResult], keeper: SnapshotKeeper, task: Task) -> None:
    """Mark all ranks as stopped, and drop their errors: those came from the loss of another rank, not from the cell."""
    fill_from_snapshot(ends, keeper, task)
    for end in ends:
        if end.outcome is not None:
            end.outcome = replace(end.outcome, failure=None, stopped=True)


def outcome_of(keeper: SnapshotKeeper, task: Task) -> Outcome | None:
    """Return an outcome of rank 0 from the newest snapshot, with its buffers stored like results; ``None`` if there is none."""
    newest = keeper.newest
    if newest is None or not task.blob_folder.exists():
        return None
    snapshot = assembled(partial(keeper.store.part, newest.number), 0)
    held = keeper.blobs(newest)
    blobs = BlobFolder(task.blob_folder, [held.address])
    for key in snapshot.parcel.keys:
        blobs.store(key, held.open(key))
    return Outcome(
        rank=0,
        failure=None,
        stopped=True,
        steps=snapshot.step,
        parcel=snapshot.parcel,
        random_state=snapshot.random_state,
        device=torch.device(task.device).type,
        from_cpu=snapshot.from_cpu,
        from_snapshot=True,
    )

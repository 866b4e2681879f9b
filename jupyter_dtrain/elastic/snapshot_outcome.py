"""What is left of rank 0 when it is gone: its part of the last snapshot, as if it had returned with that.

So also where it is there, but others have taken their part of the optimizers with them: weights and moments are to be of one step.
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
    """Let rank 0 that is gone, or has not all of the optimizers, have come home with its part of the newest snapshot, if there is one."""
    first = ends[0].outcome if ends else None
    if ends and (first is None or (first.states_missing and not first.from_snapshot)):
        keeper.commit(ON_ITS_WAY)
        # Where somebody has removed the files, or there is no room, how the run has ended is to be told all the same.
        with suppress(OSError):
            found = outcome_of(keeper, task)
            if first is None:
                ends[0].outcome = found
            elif found is not None:
                ends[0].outcome = replace(found, failure=first.failure, held=first.held, states_missing=True)


def stop_there(ends: Sequence[WorkerResult], keeper: SnapshotKeeper, task: Task) -> None:
    """Let the run have been stopped where its ranks have left: the error that freed them is none of the cell's."""
    fill_from_snapshot(ends, keeper, task)
    for end in ends:
        if end.outcome is not None:
            end.outcome = replace(end.outcome, failure=None, stopped=True)


def outcome_of(keeper: SnapshotKeeper, task: Task) -> Outcome | None:
    """Return what the newest snapshot has of rank 0, its buffers where those of results are; ``None`` where there is none."""
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

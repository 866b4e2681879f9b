"""What is left of rank 0 when it is gone: its part of the last snapshot, as if it had come home with that.

So also where it is there, but others have taken their part of the optimizers with them: weights and moments are to be of one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from ..engine.snapshots import read_snapshot
from ..engine.task import Outcome, Task
from ..rank_end import RankEnd
from ..transport.blobs import BlobFolder
from .keeper import SnapshotKeeper


def salvage(ends: Sequence[RankEnd], keeper: SnapshotKeeper, task: Task) -> None:
    """Let rank 0 that is gone, or has not all of the optimizers, have come home with its part of the newest snapshot, if there is one."""
    first = ends[0].outcome if ends else None
    if ends and (first is None or (first.states_missing and not first.from_snapshot)):
        keeper.settle()
        # Where somebody has removed the files, or there is no room, how the run has ended is to be told all the same.
        with suppress(OSError):
            found = salvaged(keeper, task)
            if first is None:
                ends[0].outcome = found
            elif found is not None:
                ends[0].outcome = replace(found, failure=first.failure, held=first.held, states_missing=True)


def stop_there(ends: Sequence[RankEnd], keeper: SnapshotKeeper, task: Task) -> None:
    """Let the run have been stopped where its ranks have left: the error that freed them is none of the cell's."""
    salvage(ends, keeper, task)
    for end in ends:
        if end.outcome is not None:
            end.outcome = replace(end.outcome, failure=None, stopped=True)


def salvaged(keeper: SnapshotKeeper, task: Task) -> Outcome | None:
    """Return what the newest snapshot has of rank 0, its buffers where those of results are; ``None`` where there is none."""
    newest = keeper.newest
    if newest is None or not task.blob_folder.exists():
        return None
    snapshot = read_snapshot(keeper.folder, newest.number, 0)
    held = keeper.blobs(newest)
    blobs = BlobFolder(task.blob_folder, [held.path])
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

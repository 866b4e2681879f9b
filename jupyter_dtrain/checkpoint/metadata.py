"""What is known of a checkpoint without reading it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import CheckpointError
from ..options import Metric

Wanted = int | Literal["best"]
"""What names a checkpoint of a run: its step, or that it is the best."""


@dataclass(frozen=True)
class Measured:
    """The value of a metric."""

    metric: Metric
    value: float


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint of a run.

    Attributes
    ----------
    folder : Path
    step : int
        Steps that were done.
    world_size : int
        Ranks that wrote it.
    place : str
        Where in the cell that was.
    time : float
        When it was written, in seconds since the epoch.
    num_bytes : int
        What it takes, buffers that others use as well included.
    pinned : bool
        It is kept until it is deleted.
    measured : Measured, optional
        It was the best so far when it was written.
    """

    folder: Path
    step: int
    world_size: int
    place: str
    time: float
    num_bytes: int
    pinned: bool
    measured: Measured | None


@dataclass(frozen=True)
class Intact:
    """A checkpoint whose files are what was written: what was read of them when that was found is what is used.

    Attributes
    ----------
    checkpoint : Checkpoint
    parts : sequence of bytes
        Each rank's.
    blobs : mapping of str to str
        Names of its buffers, with their checksums.
    """

    checkpoint: Checkpoint
    parts: Sequence[bytes]
    blobs: Mapping[str, str]


def best_of(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Return the best by the metric that was followed, the first of equal ones, if there is one."""
    best: Checkpoint | None = None
    for checkpoint in checkpoints:
        if checkpoint.measured is None:
            continue
        if best is None or best.measured is None or checkpoint.measured.metric.is_better(checkpoint.measured.value, best.measured.value):
            best = checkpoint
    return best


def step_of(wanted: Wanted | None, checkpoints: Iterable[Checkpoint], *, run: str) -> int | None:
    """Return the step of the checkpoint that is `wanted`, ``None`` where none is named; a `CheckpointError`: there is no best one."""
    if wanted != "best":
        return wanted
    best = best_of(checkpoints)
    if best is None:
        raise CheckpointError(f"{run} has no best checkpoint: add `--best val_loss:min` to %%distribute to keep one.")
    return best.step

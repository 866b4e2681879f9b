"""Metadata of checkpoints, which is known without reading their parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import CheckpointError
from ..options import Metric

Wanted = int | Literal["best"]
"""Names a checkpoint of a run: its step, or ``"best"``."""


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
        Number of completed steps.
    world_size : int
        Number of ranks that wrote it.
    place : str
        Position in the cell.
    time : float
        When it was written, in seconds since the epoch.
    num_bytes : int
        Its size, including buffers that other checkpoints share.
    pinned : bool
        It is kept until it is deleted.
    measured : Measured, optional
        The value of the metric, if it was the best so far when it was written.
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
    """A checkpoint that was verified. Its parts are those that were verified; nothing is read from disk a second time.

    Attributes
    ----------
    checkpoint : Checkpoint
    parts : sequence of bytes
        One per rank.
    blobs : mapping of str to str
        Names of its buffers → their checksums.
    """

    checkpoint: Checkpoint
    parts: Sequence[bytes]
    blobs: Mapping[str, str]


def best_of(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Return the best checkpoint by its metric, the first of equal ones; ``None`` if there is none."""
    best: Checkpoint | None = None
    for checkpoint in checkpoints:
        if checkpoint.measured is None:
            continue
        if best is None or best.measured is None or checkpoint.measured.metric.is_better(checkpoint.measured.value, best.measured.value):
            best = checkpoint
    return best


def step_of(wanted: Wanted | None, checkpoints: Iterable[Checkpoint], *, run: str) -> int | None:
    """Return the step of the `wanted` checkpoint, ``None`` if none is named; raise a `CheckpointError` if there is no best one."""
    if wanted != "best":
        return wanted
    best = best_of(checkpoints)
    if best is None:
        raise CheckpointError(f"{run} has no best checkpoint: add `--best val_loss:min` to %%distribute to keep one.")
    return best.step

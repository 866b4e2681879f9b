"""What is known of a checkpoint without reading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
        It stays until it is deleted.
    """

    folder: Path
    step: int
    world_size: int
    place: str
    time: float
    num_bytes: int
    pinned: bool

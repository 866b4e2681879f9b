"""Keep the status of a run: its phase, duration, progress and last checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from ..protocol import Progress, RunPhase, RunUpdate
from .aggregation import StepCurves
from .curves import finite, non_finite_text
from .run_progress import Pace, ReadingSpeed


class RunStatus:
    """Status of one run. Not thread-safe: its owner locks.

    Parameters
    ----------
    run_id, name : str
    world_size : int
    started : float
        In seconds since the epoch.
    idle : float
        Seconds since then in which the run was interrupted.
    detached : bool
    clock : callable
        Returns seconds since the epoch.

    Attributes
    ----------
    world_size : int
    phase : str
    checkpoint : int, optional
        Step of the last checkpoint on disk.
    progress : Progress, optional
        Position of rank 0 in its epoch.
    pace : Pace
    reading : ReadingSpeed
    """

    def __init__(
        self, *, run_id: str, name: str, world_size: int, started: float, idle: float, detached: bool, clock: Callable[[], float]
    ) -> None:
        self._run_id, self._name, self.world_size = run_id, name, world_size
        self._started, self._idle, self._detached, self._clock = started, idle, detached, clock
        self._ended: float | None = None
        self._error: str | None = None
        self.phase: RunPhase = "starting"
        self.checkpoint: int | None = None
        self.progress: Progress | None = None
        self.pace, self.reading = Pace(), ReadingSpeed()

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended."""
        return self._ended is not None

    def start_running(self) -> None:
        """Change the phase from starting to running."""
        if self.phase == "starting":
            self.phase = "running"

    def finish(self, phase: RunPhase, error: str | None) -> None:
        """End the run as `phase`."""
        self._ended, self.phase, self._error = self._clock(), phase, error

    def go_back(self) -> None:
        """Forget the progress of the run."""
        self.progress = None
        self.pace.clear()

    def update(self, steps: StepCurves) -> RunUpdate:
        """Return the status for views, with the last of its `steps`."""
        progress, last, throughput = self.progress, steps.last, steps.throughput
        rows, bytes_read = self.reading.overall() if self.has_ended else self.reading.recent()
        return RunUpdate(
            run_id=self._run_id,
            name=self._name,
            phase=self.phase,
            world_size=self.world_size,
            started=self._started,
            elapsed=max(0.0, (self._clock() if self._ended is None else self._ended) - self._started - self._idle),
            step=last.step,
            epoch=progress.epoch if progress else None,
            batch=progress.batch if progress else None,
            batches=progress.batches if progress else None,
            loss=finite(last.loss),
            odd_loss=non_finite_text(last.loss),
            learning_rate=finite(last.learning_rate),
            samples_per_second=throughput.overall() if self.has_ended else throughput.recent(),
            rows_per_second=rows,
            bytes_per_second=bytes_read,
            fraction=self.pace.fraction,
            remaining=self.pace.remaining() if self.phase == "running" else None,
            checkpoint=self.checkpoint,
            detached=self._detached,
            error=self._error,
        )

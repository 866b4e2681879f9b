"""Hold the state of one run as its events report it: status, curves, and what ranks report beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..protocol import RunPhase, Scalars
from .aggregation import StepCurves
from .curves import MEASURED, OF_DEVICES, Curve, RunCurves
from .logged_scalars import LoggedScalars, Point
from .rank_reports import DeviceReports, KnownHyperparameters, Notices, TimeSplits
from .run_status import RunStatus


class ReportedRun:
    """State of one run as reported by events. Not thread-safe: its owner locks.

    Parameters
    ----------
    run_id : str
    started : float
        In seconds since the epoch.
    status : RunStatus
    clock : callable
        Returns seconds since the epoch.

    Attributes
    ----------
    curves : RunCurves
    steps : StepCurves
    devices : DeviceReports
    times : TimeSplits
    notices : Notices
    hyperparameters : KnownHyperparameters
    changed : bool
        Whether the status has changed since it was last sent; the sender resets it.
    """

    def __init__(self, run_id: str, started: float, status: RunStatus, clock: Callable[[], float]) -> None:
        self.status, self._clock = status, clock
        self._ranks_started: set[int] = set()
        self.devices, self.times, self.notices = DeviceReports(), TimeSplits(), Notices()
        self.curves = RunCurves(run_id)
        self.steps = StepCurves(status.world_size, self.curves, started=started, notices=self.notices)
        self._scalars = LoggedScalars(MEASURED)
        self.hyperparameters = KnownHyperparameters()
        self.changed = True

    def start_rank(self, rank: int) -> bool:
        """Note that a rank has started; return whether all have."""
        self._ranks_started.add(rank)
        self.times.start(rank)
        return len(self._ranks_started) == self.status.world_size

    def set_phase(self, phase: RunPhase) -> None:
        """Set the phase. The time of a pause does not count as slow training."""
        if "paused" in (phase, self.status.phase):  # reports from before the pause may arrive within it
            self.status.pace.stand_still()
            self.steps.throughput.stand_still()
        self.status.phase = phase
        self.changed = True

    def restore(self, curves: Mapping[str, Curve]) -> None:
        """Start from the recorded curves; steps in them that are reported again count once."""
        for name, curve in curves.items():
            if name.startswith(OF_DEVICES):
                continue
            self.curves.restore(name, curve)
            self._scalars.restore(name, len(curve))
        self.steps.restore()

    def go_back(self, step: int, taken_back: Mapping[str, int] | None) -> None:
        """Return to the state after `step`, from which the run resumes: later points are dropped, and will be reported again.

        Parameters
        ----------
        taken_back : mapping of str to int, optional
            Number of dropped points of each curve in the record; ``None`` if unknown.
        """
        lost = self.curves.cut(step)
        self.steps.go_back(step, self._clock())
        self._scalars.take_back(lost if taken_back is None else taken_back)
        self.status.go_back()
        self.changed = True

    def begin_again(self, world_size: int) -> None:
        """Expect reports of `world_size` ranks that resume from a snapshot and report again what they had reported since."""
        self.steps.begin_again(world_size)
        self.status.world_size = world_size
        self.devices.keep(world_size)
        self.changed = True

    def log(self, event: Scalars, on_logged: Callable[[str, int, Sequence[Point]], None]) -> None:
        """Add points that the cell has logged; for `on_logged`, see `RunRecorder`."""
        name, points = self._scalars.fresh(event)
        for point in points:
            self.curves.add(name, *point)
        if points:
            on_logged(name, self._scalars.count(name) - len(points) + 1, points)

"""Collect the events of one run; return updates for views and rows for the store.

Three threads meet here: events come on an IO thread, views are served on the telemetry thread, and the thread that writes the store fetches
rows. Each fetches what is new for it when it is ready. So a slow disk or browser never blocks the IO thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ..errors import ProtocolError
from ..protocol import (
    RUN_PHASES_ENDED,
    DeviceUse,
    Extent,
    Hyperparameters,
    Message,
    Notice,
    Points,
    Progress,
    RankStarted,
    RunPhase,
    RunUpdate,
    Scalars,
    Steps,
    TimeSplit,
)
from .curves import Curve, Rows, finite
from .logged_scalars import Point
from .reported_run import ReportedRun
from .run_status import RunStatus


class RunRecorder:
    """Collect the events of one run from all its ranks.

    All methods may be called on any thread.

    Parameters
    ----------
    run_id, name : str
        Id and name of the run.
    world_size : int
        Number of ranks.
    started : float, optional
        When the run started, in seconds since the epoch; by default now.
    idle : float
        Seconds since then in which the run was interrupted.
    detached : bool
        Whether the run continues without the kernel.
    clock : callable
        Returns seconds since the epoch; tests pass their own.

    Attributes
    ----------
    hyperparameters : KnownHyperparameters
    on_logged : callable
        Called with new points that the cell has logged: the name of their curve, the number of the first point, from 1, and the points.
        The lock is held during the call, so it must not call the recorder.
    """

    def __init__(
        self,
        *,
        run_id: str,
        name: str,
        world_size: int,
        started: float | None = None,
        idle: float = 0.0,
        detached: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        started = clock() if started is None else started
        self._status = RunStatus(
            run_id=run_id, name=name, world_size=world_size, started=started, idle=idle, detached=detached, clock=clock
        )
        self._run = ReportedRun(run_id, started, self._status, clock)
        self.hyperparameters = self._run.hyperparameters
        self.on_logged: Callable[[str, int, Sequence[Point]], None] = lambda _name, _first, _points: None

    # -- in ----------------------------------------------------------------------------------------------------------

    def apply(self, event: Message) -> None:
        """Apply one event of the run.

        Raises
        ------
        ProtocolError
            It is not an engine's event, or is malformed. The recorder is unchanged.
        """
        run = self._run
        with self._lock:
            match event:
                case RankStarted():
                    if run.start_rank(event.rank):
                        self._start()
                case Steps():
                    run.steps.add(event)
                    self._start()
                case Progress():
                    if event.rank == 0:
                        self._status.progress = event
                        run.curves.add_epoch(event, self._clock())
                        run.changed = True
                case Extent():
                    self._status.pace.add(event.time, event.fraction)
                    run.changed = True
                case DeviceUse():
                    run.devices.add(event)
                    run.curves.record_device(event, run.steps.last.step)
                case TimeSplit():
                    self._status.reading.add(run.times.add(event))
                    run.changed |= event.rows > 0
                case Scalars():
                    run.log(event, self.on_logged)
                case Hyperparameters():
                    self.hyperparameters.note(event)
                case Notice():
                    run.notices.add(event)
                case _:
                    raise ProtocolError(f"{event.type!r} is not an engine's event")

    def restore(self, curves: Mapping[str, Curve]) -> None:
        """Start from the recorded curves; steps in them that are reported again count once."""
        with self._lock:
            self._run.restore(curves)

    def go_back(self, step: int, taken_back: Mapping[str, int] | None) -> None:
        """Return to the state after `step`, from which the run resumes: later points are dropped, and will be reported again.

        Parameters
        ----------
        taken_back : mapping of str to int, optional
            Number of dropped points of each curve in the record; ``None`` if unknown.
        """
        with self._lock:
            self._run.go_back(step, taken_back)

    def begin_again(self, world_size: int) -> None:
        """Expect reports of `world_size` ranks that resume from a snapshot and report again what they had reported since."""
        with self._lock:
            self._run.begin_again(world_size)

    def set_phase(self, phase: RunPhase) -> None:
        """Set the phase of a running run, for example ``"stopping"``; :meth:`finish` ends it."""
        with self._lock:
            if not self._status.has_ended:
                self._run.set_phase(phase)

    def note_checkpoint(self, step: int) -> None:
        """Note that a checkpoint of the state after `step` is on disk."""
        with self._lock:
            self._status.checkpoint = step
            self._run.changed = True

    def finish(self, phase: RunPhase, error: str | None = None) -> None:
        """End the run as `phase`, and record steps that were held back for a rank. Only the first call counts."""
        if phase not in RUN_PHASES_ENDED:
            raise ValueError(f"a run does not end as {phase!r}")
        with self._lock:
            if not self._status.has_ended:
                self._run.steps.flush()
                self._status.finish(phase, error)
                self._run.changed = True

    # -- out, for views ----------------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended."""
        return self._status.has_ended

    def run_update(self) -> RunUpdate:
        """Return the current state of the run."""
        with self._lock:
            return self._status.update(self._run.steps)

    def devices(self) -> list[DeviceUse]:
        """Return the latest report on each rank's device."""
        with self._lock:
            return self._run.devices.all()

    def times(self) -> list[TimeSplit]:
        """Return the time split of each rank so far."""
        with self._lock:
            return self._run.times.all()

    def notices(self) -> list[Notice]:
        """Return all notices of the run, each text once."""
        with self._lock:
            return self._run.notices.all()

    def drain(self) -> list[Message]:
        """Return what is new since the last call: one :class:`~..protocol.Points` per curve, then the other messages."""
        with self._lock:
            messages: list[Message] = [*self._run.curves.drain()]
            messages += self._run.devices.fresh()
            messages += self._run.times.fresh()
            if self._run.changed:
                messages.append(self._status.update(self._run.steps))
            messages += self._run.notices.fresh()  # they do not name their run, so its update has to come before them
            self._run.changed = False
            return messages

    def snapshot_points(self) -> list[Points]:
        """Return the curves up to the last :meth:`drain`, of at most 10,000 points each.

        Later points are left to the next drain. So a view that gets a snapshot and then every drain gets each point once.
        """
        with self._lock:
            return self._run.curves.snapshot()

    def outline(self, limit: int) -> list[Points]:
        """Return the curves so far, drained or not, of at most `limit` points each."""
        with self._lock:
            return self._run.curves.outline(limit)

    def overviews(self) -> dict[str, Curve]:
        """Return the curves that are longer than a view's limit, thinned to it, by name."""
        with self._lock:
            return self._run.curves.overviews()

    def last_value(self, name: str) -> float | None:
        """Return the last value of the curve `name`; ``None`` without points or if it is not finite."""
        with self._lock:
            return finite(self._run.curves.last_value(name))

    # -- out, for the store ------------------------------------------------------------------------------------------

    def take_rows(self) -> list[Rows]:
        """Return every point since the last call, for the store. Call it about once a second, as points are kept until then."""
        with self._lock:
            return self._run.curves.take_rows()

    def drop_rows(self) -> None:
        """Stop keeping rows, as there is no store."""
        with self._lock:
            self._run.curves.drop_rows()

    def _start(self) -> None:
        self._status.start_running()
        self._run.changed = True

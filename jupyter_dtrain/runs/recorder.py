"""What one run has reported: engine events go in, updates for the views and rows for the store come out.

Three threads meet here: events come from an IO thread, views are served from the telemetry thread, rows are fetched by
whoever writes the store. Each takes what is new for it, when it is ready for it, so a slow disk or a slow browser never
holds up the IO thread.
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
    """Collects the events of one run from all its ranks.

    All methods may be called from any thread.

    Parameters
    ----------
    run_id, name : str
        The run, and what it is called.
    world_size : int
        Number of ranks.
    started : float, optional
        When the run started, in seconds since the epoch; by default now.
    idle : float
        Seconds since it began in which nobody ran it: it was resumed after them.
    detached : bool
        Whether the run goes on without the kernel.
    clock : callable
        Returns seconds since the epoch; tests give their own.

    Attributes
    ----------
    hyperparameters : KnownHyperparameters
    on_logged : callable
        Given new points that the cell has logged: what their curve is called, the number of the first of them, from 1, and the points.
        Called with a lock held: it asks nothing of the recorder.
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
        """Take one event of the run.

        Raises
        ------
        ProtocolError
            It is not an engine's event, or is malformed. The recorder is as it was.
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
        """Begin with what is recorded of the run already; steps in it that are told again count once."""
        with self._lock:
            self._run.restore(curves)

    def go_back(self, step: int, taken_back: Mapping[str, int] | None) -> None:
        """Be as after `step`, from which the run goes on: the points after it are taken back, and are told again.

        Parameters
        ----------
        taken_back : mapping of str to int, optional
            How many points of each curve those are; ``None``: the record does not say.
        """
        with self._lock:
            self._run.go_back(step, taken_back)

    def begin_again(self, world_size: int) -> None:
        """Say that ranks go on from a snapshot, so many: they report again what they had reported since then."""
        with self._lock:
            self._run.begin_again(world_size)

    def set_phase(self, phase: RunPhase) -> None:
        """Say that the run is `phase` now, for example ``"stopping"``; :meth:`finish` ends it."""
        with self._lock:
            if not self._status.has_ended:
                self._status.set_phase(phase)
                self._run.changed = True

    def note_checkpoint(self, step: int) -> None:
        """Say that a checkpoint of the state after `step` is on disk."""
        with self._lock:
            self._status.checkpoint = step
            self._run.changed = True

    def finish(self, phase: RunPhase, error: str | None = None) -> None:
        """End the run as `phase`; steps that were waiting for a rank come out as they are. Only the first call counts."""
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
        """Return the run as it is now."""
        with self._lock:
            return self._status.update(self._run.steps)

    def devices(self) -> list[DeviceUse]:
        """Return the latest report on each rank's device."""
        with self._lock:
            return self._run.devices.all()

    def times(self) -> list[TimeSplit]:
        """Return where the time of each rank has gone so far."""
        with self._lock:
            return self._run.times.all()

    def notices(self) -> list[Notice]:
        """Return all notices of the run, each text once."""
        with self._lock:
            return self._run.notices.all()

    def drain(self) -> list[Message]:
        """Return what is new since the last call: one :class:`~..protocol.Points` per curve, then the rest."""
        with self._lock:
            messages: list[Message] = [*self._run.curves.drain()]
            messages += self._run.devices.fresh()
            messages += self._run.times.fresh()
            if self._run.changed:
                messages.append(self._status.update(self._run.steps))
            messages += self._run.notices.fresh()  # they do not name their run, so a new one has to be there before them
            self._run.changed = False
            return messages

    def snapshot_points(self) -> list[Points]:
        """Return the curves up to the last :meth:`drain`, of at most 10,000 points each.

        What came since is left to the next drain, so a view that gets a snapshot and then every drain gets each point once.
        """
        with self._lock:
            return self._run.curves.snapshot()

    def outline(self, limit: int) -> list[Points]:
        """Return the curves up to now, of at most `limit` points each, whoever has fetched them."""
        with self._lock:
            return self._run.curves.outline(limit)

    def overviews(self) -> dict[str, Curve]:
        """Return the curves of which views have had to leave out points, by name, of as many points as a view gets."""
        with self._lock:
            return self._run.curves.overviews()

    def last_value(self, name: str) -> float | None:
        """Return the last value of the curve `name`; ``None`` where there is none, or it was not finite."""
        with self._lock:
            return finite(self._run.curves.last_value(name))

    # -- out, for the store ------------------------------------------------------------------------------------------

    def take_rows(self) -> list[Rows]:
        """Return every point since the last call, for the store. Call it about once a second: they are kept until then."""
        with self._lock:
            return self._run.curves.take_rows()

    def drop_rows(self) -> None:
        """Keep no more rows: there is no store, or it has failed."""
        with self._lock:
            self._run.curves.drop_rows()

    def _start(self) -> None:
        self._status.start_running()
        self._run.changed = True

"""What one run has reported: engine events go in, updates for the views and rows for the store come out.

Three threads meet here: events come from an IO thread, views are served from the telemetry thread, rows are fetched by
whoever writes the store. Each takes what is new for it, when it is ready for it, so a slow disk or a slow browser never
holds up the IO thread.
"""

from __future__ import annotations

import math
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
from .aggregation import GlobalStep, GlobalSteps, LoggedScalars, Point
from .curves import (
    EPOCH,
    LEARNING_RATE,
    LOSS,
    MEASURED,
    OF_DEVICES,
    SAMPLES_PER_SECOND,
    Curve,
    Rows,
    RunCurves,
    finite,
    non_finite_text,
)
from .run_progress import DeviceReports, KnownHyperparameters, Notices, Pace, ReadingSpeed, Throughput, TimeSplits

RATE_INTERVAL = 1.0
"""Seconds of event time between two points of the curve of samples per second."""


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
        self._run_id = run_id
        self._name = name
        self._world_size = world_size
        self._started = clock() if started is None else started
        self._ended: float | None = None
        self._idle = idle
        self._detached = detached
        self._phase: RunPhase = "starting"
        self._error: str | None = None
        self._checkpoint: int | None = None
        self._ranks_started: set[int] = set()
        self._steps = GlobalSteps(world_size)
        self._last = GlobalStep(step=0, time=self._started, loss=None, learning_rate=None, samples=0, odd_rank=None)
        self._progress: Progress | None = None
        self._throughput = Throughput()
        self._pace = Pace()
        self._rate_recorded = -math.inf
        self._devices = DeviceReports()
        self._times = TimeSplits()
        self._reading = ReadingSpeed()
        self._notices = Notices()
        self._loss_was_odd = False
        self._scalars = LoggedScalars(MEASURED)
        self._curves = RunCurves(run_id)
        self.hyperparameters = KnownHyperparameters()
        self.on_logged: Callable[[str, int, Sequence[Point]], None] = lambda _name, _first, _points: None
        self._changed = True

    # -- in ----------------------------------------------------------------------------------------------------------

    def apply(self, event: Message) -> None:
        """Take one event of the run.

        Raises
        ------
        ProtocolError
            It is not an engine's event, or is malformed. The recorder is as it was.
        """
        with self._lock:
            match event:
                case RankStarted():
                    self._ranks_started.add(event.rank)
                    self._times.start(event.rank)
                    if len(self._ranks_started) == self._world_size:
                        self._run()
                case Steps():
                    self._take(self._steps.add(event))
                    self._run()
                case Progress():
                    if event.rank == 0:
                        self._progress = event
                        self._record_epoch(event)
                        self._changed = True
                case Extent():
                    self._pace.add(event.time, event.fraction)
                    self._changed = True
                case DeviceUse():
                    self._devices.add(event)
                    self._curves.record(f"{OF_DEVICES}{event.rank}/utilization", self._last.step, event.time, event.utilization)
                    self._curves.record(f"{OF_DEVICES}{event.rank}/memory_used", self._last.step, event.time, event.memory_used)
                case TimeSplit():
                    self._reading.add(self._times.add(event))
                    self._changed |= event.rows > 0
                case Scalars():
                    self._log(event)
                case Hyperparameters():
                    self.hyperparameters.note(event)
                case Notice():
                    self._notices.add(event)
                case _:
                    raise ProtocolError(f"{event.type!r} is not an engine's event")

    def restore(self, curves: Mapping[str, Curve]) -> None:
        """Begin with what is recorded of the run already; steps in it that are told again count once."""
        with self._lock:
            for name, curve in curves.items():
                if name.startswith(OF_DEVICES):
                    continue
                self._curves.restore(name, curve)
                self._scalars.restore(name, len(curve))
            known = curves.get(LOSS) or curves.get(LEARNING_RATE)
            if known is not None and len(known):
                self._steps.begin_after(known.step[-1])

    def go_back(self, step: int, taken_back: Mapping[str, int] | None) -> None:
        """Be as after `step`, from which the run goes on: the points after it are taken back, and are told again.

        Parameters
        ----------
        taken_back : mapping of str to int, optional
            How many points of each curve those are; ``None``: the record does not say.
        """
        with self._lock:
            self._steps.go_back(step)
            lost = self._curves.cut(step)
            self._scalars.take_back(lost if taken_back is None else taken_back)
            self._last = GlobalStep(step, self._clock(), self._curves.last_value(LOSS), self._curves.last_value(LEARNING_RATE), 0, None)
            self._progress = None
            self._pace.clear()
            self._changed = True

    def begin_again(self, world_size: int) -> None:
        """Say that ranks go on from a snapshot, so many: they report again what they had reported since then."""
        with self._lock:
            self._steps.begin_again(world_size)
            self._world_size = world_size
            self._devices.keep(world_size)
            self._changed = True

    def set_phase(self, phase: RunPhase) -> None:
        """Say that the run is `phase` now, for example ``"stopping"``; :meth:`finish` ends it."""
        with self._lock:
            if self._ended is None:
                self._phase = phase
                if phase == "paused":  # what it waited does not make it slower
                    self._pace.stand_still()
                self._changed = True

    def note_checkpoint(self, step: int) -> None:
        """Say that a checkpoint of the state after `step` is on disk."""
        with self._lock:
            self._checkpoint = step
            self._changed = True

    def finish(self, phase: RunPhase, error: str | None = None) -> None:
        """End the run as `phase`; steps that were waiting for a rank come out as they are. Only the first call counts."""
        if phase not in RUN_PHASES_ENDED:
            raise ValueError(f"a run does not end as {phase!r}")
        with self._lock:
            if self._ended is None:
                self._take(self._steps.flush())
                self._ended = self._clock()
                self._phase = phase
                self._error = error
                self._changed = True

    # -- out, for views ----------------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended."""
        return self._ended is not None

    def run_update(self) -> RunUpdate:
        """Return the run as it is now."""
        with self._lock:
            return self._run_update()

    def devices(self) -> list[DeviceUse]:
        """Return the latest report on each rank's device."""
        with self._lock:
            return self._devices.all()

    def times(self) -> list[TimeSplit]:
        """Return where the time of each rank has gone so far."""
        with self._lock:
            return self._times.all()

    def notices(self) -> list[Notice]:
        """Return all notices of the run, each text once."""
        with self._lock:
            return self._notices.all()

    def drain(self) -> list[Message]:
        """Return what is new since the last call: one :class:`~..protocol.Points` per curve, then the rest."""
        with self._lock:
            messages: list[Message] = [*self._curves.drain()]
            messages += self._devices.fresh()
            messages += self._times.fresh()
            if self._changed:
                messages.append(self._run_update())
            messages += self._notices.fresh()  # they do not name their run, so a new one has to be there before them
            self._changed = False
            return messages

    def snapshot_points(self) -> list[Points]:
        """Return the curves up to the last :meth:`drain`, of at most 10,000 points each.

        What came since is left to the next drain, so a view that gets a snapshot and then every drain gets each point once.
        """
        with self._lock:
            return self._curves.snapshot()

    def outline(self, limit: int) -> list[Points]:
        """Return the curves up to now, of at most `limit` points each, whoever has fetched them."""
        with self._lock:
            return self._curves.outline(limit)

    def overviews(self) -> dict[str, Curve]:
        """Return the curves of which views have had to leave out points, by name, of as many points as a view gets."""
        with self._lock:
            return self._curves.overviews()

    def last_value(self, name: str) -> float | None:
        """Return the last value of the curve `name`; ``None`` where there is none, or it was not finite."""
        with self._lock:
            return finite(self._curves.last_value(name))

    # -- out, for the store ------------------------------------------------------------------------------------------

    def take_rows(self) -> list[Rows]:
        """Return every point since the last call, for the store. Call it about once a second: they are kept until then."""
        with self._lock:
            return self._curves.take_rows()

    def drop_rows(self) -> None:
        """Keep no more rows: there is no store, or it has failed."""
        with self._lock:
            self._curves.drop_rows()

    # -- with the lock held ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._phase == "starting":
            self._phase = "running"
        self._changed = True

    def _take(self, steps: list[GlobalStep]) -> None:
        for step in steps:
            rate = self._throughput.add(step.time, step.samples)
            if step.loss is not None:
                self._curves.add(LOSS, step.step, step.time, step.loss)
            if step.learning_rate is not None:
                self._curves.add(LEARNING_RATE, step.step, step.time, step.learning_rate)
            if rate is not None and step.time >= self._rate_recorded + RATE_INTERVAL:
                self._rate_recorded = step.time
                self._curves.add(SAMPLES_PER_SECOND, step.step, step.time, rate)
            if step.odd_rank is not None and not self._loss_was_odd:
                self._loss_was_odd = True
                text = f"The loss is not finite at step {step.step} (first seen on rank {step.odd_rank}); its curve has a gap there."
                self._notices.add(Notice(rank=step.odd_rank, text=text))
            # A step without a loss (a second optimizer's, say) leaves the last one standing.
            self._last = step._replace(
                loss=self._last.loss if step.loss is None else step.loss,
                learning_rate=self._last.learning_rate if step.learning_rate is None else step.learning_rate,
            )
            self._changed = True

    def _log(self, event: Scalars) -> None:
        name, points = self._scalars.fresh(event)
        for point in points:
            self._curves.add(name, *point)
        if points:
            self.on_logged(name, self._scalars.count(name) - len(points) + 1, points)

    def _record_epoch(self, progress: Progress) -> None:
        """Add a point to the curve that says which step belongs to which epoch."""
        known = self._curves.last_step(EPOCH)
        if known is not None and progress.step <= known:
            return
        part = (progress.batch - 1) / progress.batches if progress.batches else 0.0
        self._curves.add(EPOCH, progress.step, self._clock(), progress.epoch - 1 + part)

    def _run_update(self) -> RunUpdate:
        progress = self._progress
        rows, bytes_read = self._reading.overall() if self.has_ended else self._reading.recent()
        return RunUpdate(
            run_id=self._run_id,
            name=self._name,
            phase=self._phase,
            world_size=self._world_size,
            started=self._started,
            elapsed=max(0.0, (self._clock() if self._ended is None else self._ended) - self._started - self._idle),
            step=self._last.step,
            epoch=progress.epoch if progress else None,
            batch=progress.batch if progress else None,
            batches=progress.batches if progress else None,
            loss=finite(self._last.loss),
            odd_loss=non_finite_text(self._last.loss),
            learning_rate=finite(self._last.learning_rate),
            samples_per_second=self._throughput.overall() if self.has_ended else self._throughput.recent(),
            rows_per_second=rows,
            bytes_per_second=bytes_read,
            fraction=self._pace.fraction,
            remaining=self._pace.remaining() if self._phase == "running" else None,
            checkpoint=self._checkpoint,
            detached=self._detached,
            error=self._error,
        )

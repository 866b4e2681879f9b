"""Schedule a cell's trials: each lane takes the next trial when it has finished one, until none are left.

Each trial is a run with its own record, checkpoints, and engines that are replaced when they die. The thread that runs the notebook's cells
packs the notebook's values for each trial and shows the output of all; a thread for each trial supervises its engines.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from ..elastic.job import CellJob
from ..elastic.main_thread_output import Inbox, Output, RankLines
from ..elastic.run_result import RunResult
from ..errors import ClusterError, DtrainError
from ..options import Metric
from ..runs.curves import MEASURED
from ..runs.logged_scalars import logged_as
from ..system.interpreter import Interrupts
from ..transport.base import BlobStore
from .executor import Lane
from .grid import Trial
from .pruning import Pruning, TrialWatch
from .tried import TrialOutput, Tried

TICK = timedelta(milliseconds=100)

OfTrial = Callable[[BlobStore], CellJob]
"""Stores the values of a trial, and returns its job."""
Prepare = Callable[[Trial], tuple[OfTrial, Sequence[object]]]
"""Returns the `OfTrial` of a trial, and the notebook's objects that are sent with it."""


class GivenUp(DtrainError):
    """The trials were stopped before this one began."""


class TrialScheduler:
    """Run trials on lanes.

    Parameters
    ----------
    trials : sequence of Trial
    lanes : sequence of Lane
    metric : Metric, optional
        Metric by which trials are compared.
    output : Output
        Output of the cell; written to on the thread that calls :meth:`run`.
    pruning : Pruning, optional
        Decides which trials are stopped early.

    Attributes
    ----------
    tried : list of Tried
        In the order of the trials.
    best : Tried, optional
        The best of the trials with a value.
    interrupted : bool
        Whether there was a keyboard interrupt.
    """

    def __init__(
        self, trials: Sequence[Trial], lanes: Sequence[Lane], *, metric: Metric | None, output: Output, pruning: Pruning | None = None
    ) -> None:
        self.tried = [Tried(trial) for trial in trials]
        self.best: Tried | None = None
        self.interrupted = False
        self._lanes, self._metric, self._output = lanes, metric, output
        self._lines = RankLines(output.stream)
        self._inbox = Inbox()
        self._pruning = pruning
        if pruning is not None:
            pruning.on_pruned = self._inbox.wake
        self._storing = threading.Lock()  # serializes storing: what one lane has stored, the next one links
        self._stopping = self._told_missing = False
        self._waiting = deque(self.tried)
        self._going: dict[Lane, Tried] = {}
        self._out_of_use: set[Lane] = set()

    def stop(self) -> None:
        """Ask running trials to stop, and begin no more. Thread-safe."""
        self._stopping = True
        self._inbox.wake()

    def run(self, prepare: Prepare, *, on_tick: Callable[[], None]) -> None:
        """Run all trials to their end.

        Parameters
        ----------
        prepare : callable
            Called on this thread for each trial when it begins.
        on_tick : callable
            Called about ten times a second.
        """
        with Interrupts(wake=self._inbox.wake) as interrupts:
            try:
                self._run(prepare, interrupts, on_tick)
            finally:  # after an internal error, no trial is left running
                self._stopping = True
                while self._going:
                    self._stop_going()
                    self._inbox.work(TICK)
                self.interrupted = interrupts.count > 0
        for tried in self._waiting:
            tried.detail = "pending"
        self._lines.flush()
        for content in self.best.written if self.best is not None else ():
            self._output.display(content, update=False)
        on_tick()

    def _run(self, prepare: Prepare, interrupts: Interrupts, on_tick: Callable[[], None]) -> None:
        while True:
            self._stopping |= interrupts.count > 0
            while self._waiting and not self._stopping and (free := self._free_lanes()):
                self._begin(self._waiting.popleft(), free[0], prepare)
            if not self._going:
                return
            if self._stopping:
                self._stop_going()
            self._stop_pruned()
            self._inbox.work(TICK)
            on_tick()

    def _free_lanes(self) -> list[Lane]:
        return [lane for lane in self._lanes if lane not in self._going and lane not in self._out_of_use]

    def _stop_going(self) -> None:
        for lane in list(self._going):
            lane.stop()

    def _stop_pruned(self) -> None:
        numbers = self._pruning.take() if self._pruning is not None else ()
        for lane, tried in self._going.items():
            if tried.trial.number in numbers:
                lane.stop()

    def _watch(self, trial: Trial) -> TrialWatch | None:
        """Return the watch of a trial that begins now, ``None`` without pruning."""
        if self._pruning is None or self._metric is None:
            return None
        return TrialWatch(self._pruning, trial, curve=logged_as(self._metric.name, MEASURED), unless=lambda: self._stopping)

    def _begin(self, tried: Tried, lane: Lane, prepare: Prepare) -> None:
        try:
            work, tried.tracked = prepare(tried.trial)
        except Exception as error:
            tried.error = error
            return

        def stored(blobs: BlobStore) -> CellJob:
            with self._storing:
                if self._stopping:
                    raise GivenUp
                return work(blobs)

        def run() -> None:
            result, raised = None, None
            try:
                result = lane.run(stored, output, watch)
            except BaseException as error:
                raised = error
            self._inbox.leave(lambda: self._end(tried, lane, result, raised))

        output, watch = TrialOutput(tried, self._inbox, self._output, self._lines), self._watch(tried.trial)
        self._going[lane] = tried
        threading.Thread(target=run, name=f"dtrain-trial-{tried.trial.number}", daemon=True).start()

    def _end(self, tried: Tried, lane: Lane, result: RunResult | None, error: BaseException | None) -> None:
        del self._going[lane]
        self._lines.flush(tried.trial.label)
        lost = error or (result.lost if result is not None else None)
        # Engines that fail to start for one trial would fail for the next.
        if isinstance(lost, ClusterError) and (tried.run is None or lane.has_lost_hosts):
            self._out_of_use.add(lane)
            if self._going or self._free_lanes():
                self._output.say(f"{lost}\nThe remaining trials use fewer engines.")
                self._requeue(tried)
                return
            for other in self._waiting:
                other.error = lost
            self._waiting.clear()
        if isinstance(error, GivenUp):
            tried.detail = "pending"
            return
        tried.result, tried.error = result, error
        if self._pruning is not None:
            tried.pruned = self._pruning.finish(tried.trial, unless=lambda: True)  # it may have ended before `pruned_at` was called
            self._tell_missing(tried)
        if not tried.failed:
            tried.value = self._value(lane) if tried.pruned is None else tried.pruned.value
        self._retain_if_best(tried)

    def _requeue(self, tried: Tried) -> None:
        """Put a trial at the front of the queue."""
        tried.detail, tried.run, tried.tracked = "queued", None, ()
        tried.written.clear()
        if self._pruning is not None:
            self._pruning.withdraw(tried.trial)
        self._waiting.appendleft(tried)

    def _tell_missing(self, tried: Tried) -> None:
        """Tell the user after the first trial, not after all, that the metric is missing."""
        if (
            self._metric is None
            or self._pruning is None
            or self._pruning.most_values
            or self._told_missing
            or tried.failed
            or tried.stopped
        ):
            return
        self._told_missing = True
        self._output.say(
            f"[{tried.trial.label}] has ended without a number {self._metric.name!r}, so no trial can be stopped early or be the best. "
            "Log it in the cell's loop with jupyter_dtrain.log, or assign a variable of that name there."
        )

    def _value(self, lane: Lane) -> float | None:
        """Return the metric of the lane's last run: the last value that its cell has logged or assigned to a variable."""
        if self._metric is None or lane.recorder is None:
            return None
        values = map(lane.recorder.last_value, (logged_as(self._metric.name, MEASURED), self._metric.name))
        return next((value for value in values if value is not None), None)

    def _retain_if_best(self, tried: Tried) -> None:
        """Keep the results of a trial if it is the best so far, and release those of any other."""
        other: Tried | None = tried
        if tried.value is not None and tried.pruned is None and (self.best is None or self._is_better(tried, self.best)):
            before, self.best = self.best, tried
            other = before
        if other is not None and other.result is not None:
            other.result, other.tracked = replace(other.result, returned=None), ()
            other.written.clear()

    def _is_better(self, tried: Tried, than: Tried) -> bool:
        """Return whether `tried` is better. Of equal trials, the one with the smaller number is, whichever has ended first."""
        assert self._metric is not None
        assert tried.value is not None
        assert than.value is not None
        if tried.value == than.value:
            return tried.trial.number < than.trial.number
        return self._metric.is_better(tried.value, than.value)

"""Merge the steps that ranks report into the steps of the run.

Each rank reports the same steps in its own batches and at its own pace. A step of the run is complete once every rank has reported it or a
later step, as each rank reports in order. Complete steps are emitted in order, and losses are summed in the order of ranks. So a curve is
equal to the last bit however the reports arrived. The slowest rank delays the others, up to a limit that bounds memory if a rank has died.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from ..errors import ProtocolError
from ..protocol import Notice, Steps
from .curves import LEARNING_RATE, LOSS, SAMPLES_PER_SECOND, RunCurves
from .rank_reports import Notices
from .run_progress import Throughput

RATE_INTERVAL = 1.0
"""Seconds of event time between two points of the curve of samples per second."""
MAX_LAG = 1000  # steps that are held back for a rank that is behind


class GlobalStep(NamedTuple):
    """One optimizer step of the run.

    `time` is when the last rank finished it, in seconds since the epoch. `loss` is the mean over the global batch, ``None`` if no rank
    reported one. `learning_rate` is that of the lowest rank that reported one. `samples` is the sum over ranks. `odd_rank` is the lowest
    rank whose loss is not finite.
    """

    step: int
    time: float
    loss: float | None
    learning_rate: float | None
    samples: int
    odd_rank: int | None


class _Part(NamedTuple):
    """One rank's report of one step."""

    time: float
    loss: float | None
    weight: float
    learning_rate: float | None
    samples: int


class GlobalSteps:
    """Merge the reports of `world_size` ranks. Not thread-safe: its owner locks.

    Parameters
    ----------
    world_size : int
        Number of ranks that report each step.
    max_lag : int
        Steps to hold back for a rank that is behind; older steps are emitted without it.
    """

    def __init__(self, world_size: int, *, max_lag: int = MAX_LAG) -> None:
        self._world_size = world_size
        self._max_lag = max_lag
        self._parts: dict[int, dict[int, _Part]] = {}  # step → rank → part
        self._reported: dict[int, int] = {}  # rank → last step it reported
        self._num_at: Counter[int] = Counter()  # last step reported → number of ranks
        self._emitted: int | None = None

    def begin_after(self, step: int) -> None:
        """Ignore reports of the steps up to `step`, which are known."""
        self._emitted = step

    def go_back(self, step: int) -> None:
        """Continue after `step`: all ranks report the later steps again."""
        self.begin_again(self._world_size)
        self._emitted = step

    def add(self, steps: Steps) -> list[GlobalStep]:
        """Add one rank's report and return the steps that it completed, in order.

        Steps that the rank has already reported and steps that were emitted without it are ignored.

        Raises
        ------
        ProtocolError
            The columns have different lengths, or the rank does not exist. Nothing of the report is added.
        """
        columns = (steps.step, steps.time, steps.loss, steps.weight, steps.learning_rate, steps.samples)
        if len({len(column) for column in columns}) > 1:
            raise ProtocolError(f"steps of rank {steps.rank} have columns of different lengths {[len(column) for column in columns]}")
        if not 0 <= steps.rank < self._world_size:
            raise ProtocolError(f"steps of rank {steps.rank} in a run of {self._world_size} ranks")
        self._count(steps.rank, -1)
        for step, *values in zip(*columns, strict=True):
            if step <= self._reported.get(steps.rank, step - 1):
                continue
            self._reported[steps.rank] = step
            if self._emitted is None or step > self._emitted:
                self._parts.setdefault(step, {})[steps.rank] = _Part(*values)
        self._count(steps.rank, 1)
        return self._emit()

    def begin_again(self, world_size: int) -> None:
        """Expect reports of `world_size` ranks from now on, which report all steps again that were not emitted."""
        self._world_size = world_size
        self._parts, self._reported, self._num_at = {}, {}, Counter()

    def flush(self) -> list[GlobalStep]:
        """Return all steps that are held back, merged from what was reported."""
        return self._emit(everything=True)

    def _emit(self, *, everything: bool = False) -> list[GlobalStep]:
        complete = -math.inf
        if everything:
            complete = math.inf
        elif self._num_at.total() == self._world_size:
            complete = min(self._num_at)
        ready = sorted(self._parts)
        num_overdue = len(ready) - self._max_lag
        ready = [step for position, step in enumerate(ready) if step <= complete or position < num_overdue]
        if ready:
            self._emitted = ready[-1]
        return [_merge(step, self._parts.pop(step)) for step in ready]

    def _count(self, rank: int, change: int) -> None:
        """Update the counts of ranks by step: a search of all ranks for each report would be quadratic in their number."""
        step = self._reported.get(rank)
        if step is not None:
            self._num_at[step] += change
            if not self._num_at[step]:
                del self._num_at[step]


def _merge(step: int, parts: dict[int, _Part]) -> GlobalStep:
    ranks = sorted(parts)
    # A rank without a share of a short batch has weight 0 and a loss of nan (a mean over no samples), which must not count.
    with_loss = [(rank, loss, parts[rank].weight) for rank in ranks if (loss := parts[rank].loss) is not None and parts[rank].weight > 0]
    total = math.fsum(weight for _, _, weight in with_loss)
    learning_rates = [parts[rank].learning_rate for rank in ranks if parts[rank].learning_rate is not None]
    return GlobalStep(
        step=step,
        time=max(part.time for part in parts.values()),
        loss=sum(weight * loss for _, loss, weight in with_loss) / total if with_loss else None,
        learning_rate=learning_rates[0] if learning_rates else None,
        samples=sum(part.samples for part in parts.values()),
        odd_rank=next((rank for rank, loss, _ in with_loss if not math.isfinite(loss)), None),
    )


class StepCurves:
    """Record the steps of a run as points of its curves. Not thread-safe: its owner locks.

    Parameters
    ----------
    world_size : int
    curves : RunCurves
        Gets the points.
    started : float
        When the run started, in seconds since the epoch.
    notices : Notices
        Gets a notice of the first loss that is not finite.

    Attributes
    ----------
    last : GlobalStep
        The last step of the run, with the last known loss and learning rate.
    throughput : Throughput
    """

    def __init__(self, world_size: int, curves: RunCurves, *, started: float, notices: Notices) -> None:
        self._steps, self._curves, self._notices = GlobalSteps(world_size), curves, notices
        self.last = GlobalStep(step=0, time=started, loss=None, learning_rate=None, samples=0, odd_rank=None)
        self.throughput = Throughput()
        self._rate_recorded = -math.inf
        self._loss_was_odd = False

    def restore(self) -> None:
        """Continue from the restored curves; their steps are ignored when they are reported again."""
        known = self._curves.last_step(LOSS) or self._curves.last_step(LEARNING_RATE)
        if known is not None:
            self._steps.begin_after(known)

    def go_back(self, step: int, now: float) -> None:
        """Return to the state after `step`, at which the curves were cut."""
        self._steps.go_back(step)
        self.last = GlobalStep(step, now, self._curves.last_value(LOSS), self._curves.last_value(LEARNING_RATE), 0, None)

    def begin_again(self, world_size: int) -> None:
        """Expect reports of `world_size` ranks from now on, which report all steps again that were not emitted."""
        self._steps.begin_again(world_size)

    def add(self, steps: Steps) -> None:
        """Add one rank's report; raise a `ProtocolError` if it is malformed, and add nothing of it."""
        self._record(self._steps.add(steps))

    def flush(self) -> None:
        """Record all steps that are held back."""
        self._record(self._steps.flush())

    def _record(self, steps: list[GlobalStep]) -> None:
        for step in steps:
            rate = self.throughput.add(step.time, step.samples)
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
            # A step without a loss, of a second optimizer for example, keeps the last one.
            self.last = step._replace(
                loss=self.last.loss if step.loss is None else step.loss,
                learning_rate=self.last.learning_rate if step.learning_rate is None else step.learning_rate,
            )

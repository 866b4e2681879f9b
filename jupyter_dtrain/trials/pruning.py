"""Stop poor trials of a search early: asynchronous successive halving, made independent of timing.

A trial is compared at a rung with the trials that were there before it. If *before* meant time, the decisions would depend on the number of
engines and the load of the machine. So *before* means the order in which trials began, as if they ran one after the other. A trial that
reaches a rung earlier than one that began before it trains on until the decision, and what it has trained beyond the rung is discarded.
That costs some steps if trials differ in speed, and makes a search reproducible.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ..runs.logged_scalars import Point
from ..search import Search
from .grid import Trial

LOOK = timedelta(milliseconds=100)

IsPoor = Callable[[int, int, float], bool]
"""Takes a trial's number, the number of its values, and the last value; returns whether to stop it: :meth:`.study.Study.is_poor`."""


@dataclass(frozen=True)
class Pruned:
    """Where a trial was stopped early: after `step` steps, with its `value` there."""

    step: int
    value: float


@dataclass
class _Progress:
    """Progress of a trial."""

    values: dict[int, Pruned] = field(default_factory=dict)  # by rung
    decided: int = 0  # number of decided rungs
    pruned: Pruned | None = None
    over: bool = False

    @property
    def settled(self) -> bool:
        """Whether no more rungs will be decided."""
        return self.pruned is not None or (self.over and self.decided not in self.values)


class Pruning:
    """Decide which trials of a search are stopped early. Thread-safe.

    Parameters
    ----------
    search : Search
    is_poor : callable
        Called for one trial and rung after the other.

    Attributes
    ----------
    on_pruned : callable
        Called, on any thread, when trials are to be stopped, which :meth:`take` returns.
    most_values : int
        Largest number of values of the metric that a trial has reported.
    """

    def __init__(self, search: Search, is_poor: IsPoor) -> None:
        self._search, self._is_poor = search, is_poor
        self.on_pruned: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._trials: dict[int, _Progress] = {}  # by trial number, in the order in which they began
        self._fresh: list[int] = []
        self._rungs: dict[int, int] = {}  # by the number of values at the rung
        self._next = search.min_resource
        self.most_values = 0

    def start(self, trial: Trial) -> None:
        """Add a trial that begins. It is compared with those that have begun before."""
        with self._changed:
            self._trials[trial.number] = _Progress()

    def withdraw(self, trial: Trial) -> None:
        """Remove a trial that did not begin after all, and will begin later."""
        with self._changed:
            del self._trials[trial.number]
            self._decide()

    def report(self, trial: Trial, first: int, points: Sequence[Point]) -> None:
        """Add points of a trial's metric: step, time and value; `first` is the number of the first point, from 1."""
        with self._changed:
            progress = self._trials[trial.number]
            for number, (step, _, value) in enumerate(points, first):
                self.most_values = max(self.most_values, number)
                if (rung := self._rung(number)) is not None and not progress.over:
                    progress.values[rung] = Pruned(step, value)
            self._decide()

    def take(self) -> list[int]:
        """Return the numbers of the trials to stop since the last call."""
        with self._changed:
            fresh, self._fresh = self._fresh, []
            return fresh

    def pruned(self, trial: Trial) -> Pruned | None:
        """Return where a trial was stopped early, ``None`` if it was not."""
        with self._changed:
            return self._trials[trial.number].pruned if trial.number in self._trials else None

    def finish(self, trial: Trial, *, unless: Callable[[], bool]) -> Pruned | None:
        """Mark a trial as ended, and return where it counts as stopped early.

        Wait while earlier trials may still change that, or until `unless` returns true.
        """
        with self._changed:
            progress = self._trials[trial.number]
            progress.over = True
            self._decide()
            while not progress.settled and not unless():
                self._changed.wait(LOOK.total_seconds())
            return progress.pruned

    def _rung(self, number: int) -> int | None:
        """Return the rung of a trial with so many values, ``None`` between rungs."""
        while self._next <= number:
            self._rungs[self._next] = len(self._rungs)
            self._next *= self._search.reduction_factor
        return self._rungs.get(number)

    def _decide(self) -> None:
        """Make all possible decisions: a trial's rung is decided once every earlier trial has passed that rung."""
        sizes = {rung: size for size, rung in self._rungs.items()}
        past: float = float("inf")  # all trials so far have decided the rungs below this one
        any_pruned = False
        for number, progress in self._trials.items():
            while not progress.settled and progress.decided < past and (reached := progress.values.get(progress.decided)) is not None:
                if self._is_poor(number, sizes[progress.decided], reached.value):
                    progress.pruned = reached
                    self._fresh.append(number)
                    any_pruned = True
                progress.decided += 1
            if not progress.settled:
                past = min(past, progress.decided)
        self._changed.notify_all()
        if any_pruned:
            self.on_pruned()


class TrialWatch:
    """Connect one trial with the pruning.

    Parameters
    ----------
    pruning : Pruning
    trial : Trial
        A trial that begins now.
    curve : str
        Name of the metric's curve.
    unless : callable
        Returns whether to stop waiting for decisions.
    """

    def __init__(self, pruning: Pruning, trial: Trial, *, curve: str, unless: Callable[[], bool]) -> None:
        self._pruning, self._trial, self._curve, self._unless = pruning, trial, curve, unless
        pruning.start(trial)

    def logged(self, name: str, first: int, points: Sequence[Point]) -> None:
        """Report points that the trial has logged: see :attr:`.RunRecorder.on_logged`."""
        if name == self._curve:
            self._pruning.report(self._trial, first, points)

    def pruned_at(self) -> int | None:
        """Return the step at which the ended trial counts as stopped early: see :meth:`Pruning.finish`."""
        found = self._pruning.finish(self._trial, unless=self._unless)
        return None if found is None else found.step

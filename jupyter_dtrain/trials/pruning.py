"""When a poor trial of a search is stopped: asynchronous successive halving in an order that does not depend on time.

A trial is compared at a rung with the trials that were there before it. Were that the clock's *before*, which trials are stopped would
change with the number of engines and the load of the machine. So it is the order in which trials begin: what is decided is what would be
if one ran after the other. A trial that gets to a rung earlier than one that began before it trains on meanwhile, and what it has trained
beyond the rung that it is stopped at is taken back. That costs some steps where trials are unequally fast, and makes a search repeatable.
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
"""Says of a trial's number, how many values it has, and the last of them, whether it is to end: see :meth:`.study.Study.is_poor`."""


@dataclass(frozen=True)
class Pruned:
    """What a trial has come to that was stopped early: after `step` steps, by its `value` there."""

    step: int
    value: float


@dataclass
class _Progress:
    """How far a trial is."""

    values: dict[int, Pruned] = field(default_factory=dict)  # by the number of the rung
    decided: int = 0  # rungs
    pruned: Pruned | None = None
    over: bool = False

    @property
    def settled(self) -> bool:
        """Whether nothing more will be decided."""
        return self.pruned is not None or (self.over and self.decided not in self.values)


class Pruning:
    """Decides which trials of a search are stopped early. Any thread may use it.

    Parameters
    ----------
    search : Search
    is_poor : callable
        Asked for one trial and rung after the other.

    Attributes
    ----------
    on_pruned : callable
        Called, on any thread, when trials are to be stopped: :meth:`take` says which.
    most_values : int
        How many values of the metric a trial has had at most.
    """

    def __init__(self, search: Search, is_poor: IsPoor) -> None:
        self._search, self._is_poor = search, is_poor
        self.on_pruned: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._trials: dict[int, _Progress] = {}  # by the trials' numbers, in the order in which they began
        self._fresh: list[int] = []
        self._rungs: dict[int, int] = {}  # by how many values a trial has there
        self._next = search.min_resource
        self.most_values = 0

    def start(self, trial: Trial) -> None:
        """Say that a trial begins: it is compared with those that have begun."""
        with self._changed:
            self._trials[trial.number] = _Progress()

    def withdraw(self, trial: Trial) -> None:
        """Say that a trial has not begun after all, and will begin later."""
        with self._changed:
            del self._trials[trial.number]
            self._decide()

    def report(self, trial: Trial, first: int, points: Sequence[Point]) -> None:
        """Take points of a trial's metric, each a step, a time and a value; `first` is the number of the first of them, from 1."""
        with self._changed:
            progress = self._trials[trial.number]
            for number, (step, _, value) in enumerate(points, first):
                self.most_values = max(self.most_values, number)
                if (rung := self._rung(number)) is not None and not progress.over:
                    progress.values[rung] = Pruned(step, value)
            self._decide()

    def take(self) -> list[int]:
        """Return the numbers of the trials that are to be stopped since the last call."""
        with self._changed:
            fresh, self._fresh = self._fresh, []
            return fresh

    def pruned(self, trial: Trial) -> Pruned | None:
        """Return where a trial is stopped early, ``None``: it has not been so far."""
        with self._changed:
            return self._trials[trial.number].pruned if trial.number in self._trials else None

    def finish(self, trial: Trial, *, unless: Callable[[], bool]) -> Pruned | None:
        """Say that a trial has ended, and return where it counts as stopped early.

        Waits for the trials before it, as long as one of these may decide it, `unless` nobody wants to know any more.
        """
        with self._changed:
            progress = self._trials[trial.number]
            progress.over = True
            self._decide()
            while not progress.settled and not unless():
                self._changed.wait(LOOK.total_seconds())
            return progress.pruned

    def _rung(self, number: int) -> int | None:
        """Return the rung that a trial is at with so many values."""
        while self._next <= number:
            self._rungs[self._next] = len(self._rungs)
            self._next *= self._search.reduction_factor
        return self._rungs.get(number)

    def _decide(self) -> None:
        """Decide all that can be: a trial's rung once every trial before it is past that rung."""
        sizes = {rung: size for size, rung in self._rungs.items()}
        past: float = float("inf")  # every trial so far has decided the rungs below
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
    """Follows one trial for the rest.

    Parameters
    ----------
    pruning : Pruning
    trial : Trial
        One that has begun.
    curve : str
        What the curve of the metric is called.
    unless : callable
        Returns whether nobody wants to know any more how it counts.
    """

    def __init__(self, pruning: Pruning, trial: Trial, *, curve: str, unless: Callable[[], bool]) -> None:
        self._pruning, self._trial, self._curve, self._unless = pruning, trial, curve, unless
        pruning.start(trial)

    def logged(self, name: str, first: int, points: Sequence[Point]) -> None:
        """Take points that the trial has logged: see :attr:`.RunRecorder.on_logged`."""
        if name == self._curve:
            self._pruning.report(self._trial, first, points)

    def pruned_at(self) -> int | None:
        """Return the step at which the trial, which has ended, counts as stopped early: see :meth:`Pruning.finish`."""
        found = self._pruning.finish(self._trial, unless=self._unless)
        return None if found is None else found.step

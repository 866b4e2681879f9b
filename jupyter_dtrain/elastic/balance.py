"""Shares of the batches that follow the engines' speeds, so that none waits for a slower one.

What a rank computes with per second is told by what it reports anyway: the samples of its steps, and where its time has gone. The
time that it waits for others does not count. New shares are ordered seldom, and where it is worth it only: each
division of a batch adds up its parts in another order, so every change is a change of rounding. A great difference is seen in a
fraction of a second, a small one only after some.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..protocol import Message, RankStarted, Steps, TimeSplit

WINDOW = timedelta(seconds=2)
"""Time over which speeds are measured, at most if the ranks do steps enough in it."""
LOOK = timedelta(seconds=0.5)
"""Time over which they are measured, at least."""
FEWEST_STEPS = 10
"""Steps over which they are measured, at least."""
TOLERANCE = 0.15
"""Part by which the longest time exceeds the shortest that is left as it is after `WINDOW`. Earlier it is more, as chance is."""
LEAST = 0.1
"""Part of an equal share that a rank gets at least: one that becomes faster again has to be seen."""


@dataclass
class _Rank:
    steps: int = 0
    samples: int = 0
    busy: float = 0.0  # seconds since the rank began
    before: tuple[int, int, float] | None = None  # the same at the beginning of the window


class Balance:
    """Says what shares the ranks should have.

    :meth:`note` is called on any thread, all else on one.

    Parameters
    ----------
    world_size : int
    clock : callable
        Seconds; tests give their own.
    """

    def __init__(self, world_size: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ranks = [_Rank() for _ in range(world_size)]
        self._since = clock()
        self._settling = True  # what is in the window was not all computed with the shares of now
        self.number = 0

    def note(self, event: Message) -> None:
        """Take what a rank reports."""
        if isinstance(event, RankStarted):
            self._ranks[event.rank] = _Rank()
        elif isinstance(event, Steps):
            self._ranks[event.rank].steps += len(event.step)
            self._ranks[event.rank].samples += sum(event.samples)
        elif isinstance(event, TimeSplit):
            self._ranks[event.rank].busy = event.data + event.forward + event.backward + event.optimizer + event.other

    def due(self) -> list[float] | None:
        """Return the speeds by which batches are to be shared out from now on, ``None`` where that may stay as it is."""
        passed, window = self._clock() - self._since, WINDOW.total_seconds()
        if passed < LOOK.total_seconds():
            return None
        done = [self._of_window(rank) for rank in self._ranks]
        if any(steps < FEWEST_STEPS for steps, _, _ in done):
            return None
        if self._settling or any(samples <= 0 or busy <= 0 for _, samples, busy in done):
            self._begin(settling=False)
            return None
        times = [busy / steps for steps, _, busy in done]  # of a step: one rank may have told of some more than another
        if max(times) < min(times) * (1 + TOLERANCE * max(1.0, window / passed)):
            if passed >= window:
                self._begin(settling=False)
            return None
        speeds = [samples / busy for _, samples, busy in done]
        mean = sum(speeds) / len(speeds)
        self.number += 1
        self._begin(settling=True)
        return [max(speed / mean, LEAST) for speed in speeds]

    def _begin(self, *, settling: bool) -> None:
        self._since, self._settling = self._clock(), settling
        for rank in self._ranks:
            rank.before = (rank.steps, rank.samples, rank.busy)

    @staticmethod
    def _of_window(rank: _Rank) -> tuple[int, int, float]:
        steps, samples, busy = rank.before or (0, 0, 0.0)
        return rank.steps - steps, rank.samples - samples, rank.busy - busy


def describe_shares(speeds: Sequence[float]) -> str:
    """Return a sentence for the user of what engines take of each batch that is shared out by their `speeds`."""
    parts = ", ".join(f"{speed / sum(speeds):.0%}" for speed in speeds)
    return f"The engines are not equally fast: of each batch they take {parts} now."

"""Shares of a batch in proportion to the engines' speeds, so that no rank waits for a slower one.

A rank's speed is its number of samples per second of computing. Both numbers come from events that ranks send anyway (`Steps`,
`TimeSplit`); the time spent waiting for other ranks does not count. Each division of a batch adds up gradients in another order,
so each new set of shares changes rounding. New shares are therefore ordered rarely: early for large differences, after `WINDOW`
for small ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..protocol import Message, RankStarted, Steps, TimeSplit

WINDOW = timedelta(seconds=2)
"""Longest time over which speeds are measured, if each rank does `FEWEST_STEPS` steps in it."""
LOOK = timedelta(seconds=0.5)
"""Shortest time over which speeds are measured."""
FEWEST_STEPS = 10
"""Fewest steps of a rank over which speeds are measured."""
TOLERANCE = 0.15
"""Relative excess of the longest step time over the shortest that changes no shares after `WINDOW`. Shorter windows are noisier: more."""
LEAST = 0.1
"""Smallest share, relative to an equal one: a rank that becomes faster again must still be measured."""


@dataclass
class _Rank:
    steps: int = 0
    samples: int = 0
    busy: float = 0.0  # seconds of computing since the rank began
    before: tuple[int, int, float] | None = None  # the same counters at the beginning of the window


class Balance:
    """Decide which shares of a batch the ranks get.

    Any thread may call :meth:`note`; one thread calls the rest.

    Parameters
    ----------
    world_size : int
    clock : callable
        Returns seconds; replaced in tests.

    Attributes
    ----------
    number : int
        How often shares have been ordered.
    """

    def __init__(self, world_size: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ranks = [_Rank() for _ in range(world_size)]
        self._since = clock()
        self._settling = True  # part of the window was computed with the shares before
        self.number = 0

    def note(self, event: Message) -> None:
        """Update a rank's counters by an event."""
        if isinstance(event, RankStarted):
            self._ranks[event.rank] = _Rank()
        elif isinstance(event, Steps):
            self._ranks[event.rank].steps += len(event.step)
            self._ranks[event.rank].samples += sum(event.samples)
        elif isinstance(event, TimeSplit):
            self._ranks[event.rank].busy = event.data + event.forward + event.backward + event.optimizer + event.other

    def due(self) -> list[float] | None:
        """Return the ranks' relative speeds if batches should be shared out anew, else ``None``."""
        passed, window = self._clock() - self._since, WINDOW.total_seconds()
        if passed < LOOK.total_seconds():
            return None
        done = [self._of_window(rank) for rank in self._ranks]
        if any(steps < FEWEST_STEPS for steps, _, _ in done):
            return None
        if self._settling or any(samples <= 0 or busy <= 0 for _, samples, busy in done):
            self._begin(settling=False)
            return None
        times = [busy / steps for steps, _, busy in done]  # per step, as one rank may have reported more steps than another
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
    """Return a sentence for the user: what part of each batch every rank gets."""
    parts = ", ".join(f"{speed / sum(speeds):.0%}" for speed in speeds)
    return f"The engines are not equally fast: of each batch they take {parts} now."

"""How long ranks that are to leave are waited for, and by what ever stronger means they are made to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

PRESSING = timedelta(seconds=1)
"""Time for ranks to leave after each means, before one more interrupt brings the next."""


class Means(Enum):
    """What makes a rank leave its cell, from gentle to rough."""

    INTERRUPT = auto()
    """A keyboard interrupt in the cell."""
    RESCUE = auto()
    """One more; and another thread of the rank takes home what the cell has made, should the first not leave all the same."""
    END = auto()
    """Its process ends, unless it is on its way home."""
    END_ALL = auto()
    """Its process ends."""


@dataclass(frozen=True)
class Pace:
    """Time until the first means, and between one and the next."""

    first: timedelta
    then: timedelta


ASKED = Pace(timedelta(seconds=2), timedelta(seconds=1))
"""When the user has asked for the end: the prompt is to be back within five seconds of the first interrupt."""
AT_ONCE = Pace(timedelta(0), timedelta(seconds=2))
"""When the user has asked for the end of a cell that counts no steps: at the end of none will it leave by itself."""
FAILED = Pace(timedelta(seconds=1), timedelta(seconds=3))
"""When a rank has failed: the others leave by themselves when they next want something of it, and nobody waits at the prompt."""


class Patience:
    """Says which means are due. `clock`: seconds; tests give their own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pace: Pace | None = None
        self._at = float("inf")
        self._hears_from = 0.0
        self._next = [Means.INTERRUPT, Means.RESCUE]

    @property
    def begun(self) -> bool:
        """Whether the ranks are to leave."""
        return self._pace is not None

    def start(self, pace: Pace) -> None:
        """Let the ranks leave, by a `pace` that takes the place of a slower one."""
        self._pace = pace
        self._at = min(self._at, self._clock() + pace.first.total_seconds())

    def due(self, *, pressed: bool = False) -> Means | None:
        """Return what is due now; `pressed`: the user is impatient. Ending is due again and again."""
        now = self._clock()
        pressed = pressed and now > self._hears_from
        if self._pace is None or (now < self._at and not pressed):
            return None
        self._hears_from = now + PRESSING.total_seconds()
        if self._next:
            self._at = now + self._pace.then.total_seconds()
            return self._next.pop(0)
        return Means.END_ALL if pressed else Means.END

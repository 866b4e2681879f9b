"""Escalation from keyboard interrupts to SIGKILL for ranks that must leave their cell, and the times in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

PRESSING = timedelta(seconds=1)
"""Shortest time between two steps of the escalation that further keyboard interrupts trigger."""


class Means(Enum):
    """Means to make a rank leave its cell, from gentle to rough."""

    INTERRUPT = auto()
    """A keyboard interrupt in the cell."""
    RESCUE = auto()
    """A second interrupt. Another thread of the rank also packs the cell's results, in case the main thread still does not leave."""
    END = auto()
    """SIGKILL, except for a rank that is returning its results."""
    END_ALL = auto()
    """SIGKILL."""


@dataclass(frozen=True)
class Pace:
    """Time until the first means, and between two means."""

    first: timedelta
    then: timedelta


ASKED = Pace(timedelta(seconds=2), timedelta(seconds=1))
"""After a user's interrupt: the prompt must be back within five seconds of it."""
AT_ONCE = Pace(timedelta(0), timedelta(seconds=2))
"""After a user's interrupt of a cell that counts no steps: it has no step end at which it would leave by itself."""
FAILED = Pace(timedelta(seconds=1), timedelta(seconds=3))
"""After a rank has failed: the others leave at their next collective, and no user waits at the prompt."""


class Patience:
    """Decide which means are due. `clock` returns seconds; replaced in tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pace: Pace | None = None
        self._at = float("inf")
        self._hears_from = 0.0
        self._next = [Means.INTERRUPT, Means.RESCUE]

    @property
    def begun(self) -> bool:
        """Whether the ranks have been asked to leave."""
        return self._pace is not None

    def start(self, pace: Pace) -> None:
        """Begin the escalation. A later `pace` can bring the next means forward, not delay it."""
        self._pace = pace
        self._at = min(self._at, self._clock() + pace.first.total_seconds())

    def due(self, *, pressed: bool = False) -> Means | None:
        """Return the means that is due now, if any; `pressed`: the user interrupts again. END is returned repeatedly."""
        now = self._clock()
        pressed = pressed and now > self._hears_from
        if self._pace is None or (now < self._at and not pressed):
            return None
        self._hears_from = now + PRESSING.total_seconds()
        if self._next:
            self._at = now + self._pace.then.total_seconds()
            return self._next.pop(0)
        return Means.END_ALL if pressed else Means.END

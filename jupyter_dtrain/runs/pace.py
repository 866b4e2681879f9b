"""How long a run still takes, from how much of it is done and how fast that has grown of late."""

from __future__ import annotations

from bisect import bisect_right
from math import inf

MAX_POINTS = 200
SHORTEST = 2.0
"""Seconds of training before anything is said."""


class Pace:
    """The part of a run that is done, over time.

    The speed is that of the latter half of the time that was seen: it follows a change, and has whole epochs with their evaluation in it
    once there are some.

    Attributes
    ----------
    fraction : float, optional
        The part that is done.
    """

    def __init__(self) -> None:
        self.fraction: float | None = None
        self._seen: list[tuple[float, float]] = []  # seconds since the epoch, the part that was done then
        self._spacing = 0.0  # seconds between two of them at least
        self._last = 0.0

    def add(self, time: float, fraction: float) -> None:
        """Take what was done at `time`. Less than before is another loop, or the run has gone back."""
        if self.fraction is not None and fraction < self.fraction:
            self.stand_still()
        self.fraction, self._last = fraction, time
        if not self._seen or time - self._seen[-1][0] >= self._spacing:
            self._seen.append((time, fraction))
        if len(self._seen) > MAX_POINTS:
            del self._seen[1::2]
            self._spacing = 2 * (time - self._seen[0][0]) / MAX_POINTS

    def stand_still(self) -> None:
        """Let the time until more is done not count."""
        self._seen, self._spacing = [], 0.0

    def clear(self) -> None:
        """Know nothing."""
        self.fraction = None
        self.stand_still()

    def remaining(self) -> float | None:
        """Return the seconds that the rest takes at this speed, ``None`` where too little was seen to say."""
        if self.fraction is None or not self._seen or self._last - self._seen[0][0] < SHORTEST:
            return None
        half = (self._seen[0][0] + self._last) / 2
        time, before = self._seen[bisect_right(self._seen, (half, inf)) - 1]
        done = self.fraction - before
        return (1 - self.fraction) * (self._last - time) / done if done > 0 else None

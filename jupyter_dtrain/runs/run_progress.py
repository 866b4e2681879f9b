"""Estimate the remaining time of a run from its progress, and its throughput from the times of its steps."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from math import inf

from ..protocol import TimeSplit
from .rank_reports import PARTS

MAX_POINTS = 200
SHORTEST = 2.0
"""Seconds of training before a remaining time is estimated."""


class Pace:
    """Progress of a run over time.

    The speed is that of the latter half of the observed time. So it follows changes, and includes whole epochs with their evaluation once
    some are done.

    Attributes
    ----------
    fraction : float, optional
        The fraction of the run that is done.
    """

    def __init__(self) -> None:
        self.fraction: float | None = None
        self._seen: list[tuple[float, float]] = []  # seconds since the epoch, fraction done
        self._spacing = 0.0  # minimum seconds between two of them
        self._last = 0.0

    def add(self, time: float, fraction: float) -> None:
        """Add the fraction that is done at `time`. A decrease means another loop or a rewind."""
        if self.fraction is not None and fraction < self.fraction:
            self.stand_still()
        self.fraction, self._last = fraction, time
        if not self._seen or time - self._seen[-1][0] >= self._spacing:
            self._seen.append((time, fraction))
        if len(self._seen) > MAX_POINTS:
            del self._seen[1::2]
            self._spacing = 2 * (time - self._seen[0][0]) / MAX_POINTS

    def stand_still(self) -> None:
        """Exclude the time until the next report from the speed."""
        self._seen, self._spacing = [], 0.0

    def clear(self) -> None:
        """Forget all progress."""
        self.fraction = None
        self.stand_still()

    def remaining(self) -> float | None:
        """Return the estimated remaining seconds, ``None`` if too little was observed."""
        if self.fraction is None or not self._seen or self._last - self._seen[0][0] < SHORTEST:
            return None
        half = (self._seen[0][0] + self._last) / 2
        time, before = self._seen[bisect_right(self._seen, (half, inf)) - 1]
        done = self.fraction - before
        return (1 - self.fraction) * (self._last - time) / done if done > 0 else None


# Throughput, from the times at which steps were finished.

WINDOW = 5.0
"""Seconds of event time over which the rate is computed."""


class Throughput:
    """Samples per second, from the times at which steps were finished.

    A rate needs two steps: the samples of the second one were processed in the time between them. A pause separates two stretches of
    steps, and the time between these counts for neither.
    """

    def __init__(self, *, window: float = WINDOW) -> None:
        self._window = window
        self._recent: deque[tuple[float, int]] = deque()
        self._in_window = 0  # samples of all of `_recent` except the first
        self._first = 0.0  # time of the first step of this stretch
        self._starts = True  # the next step starts a stretch
        self._total = 0  # samples after the first step of each stretch
        self._earlier = 0.0  # seconds of the stretches before this one

    def add(self, seconds: float, samples: int) -> float | None:
        """Count a step that was finished at `seconds` since the epoch; return :meth:`recent`."""
        if self._starts:
            if self._recent:
                self._earlier += self._recent[-1][0] - self._first
            self._recent.clear()
            self._first, self._in_window, self._starts = seconds, 0, False
        else:
            self._total += samples
            self._in_window += samples
        self._recent.append((seconds, samples))
        # Keep at least two, as a step may take longer than the window.
        while len(self._recent) > 2 and self._recent[1][0] <= seconds - self._window:
            self._recent.popleft()
            self._in_window -= self._recent[0][1]
        return self.recent()

    def stand_still(self) -> None:
        """Exclude the time until the next step from the rates."""
        self._starts = True

    def recent(self) -> float | None:
        """Return the rate over the window that ends with the last step, ``None`` without two steps."""
        if len(self._recent) < 2:
            return None
        duration = self._recent[-1][0] - self._recent[0][0]
        return self._in_window / duration if duration > 0 else None

    def overall(self) -> float | None:
        """Return the rate over all steps, ``None`` without two steps."""
        duration = self._earlier + (self._recent[-1][0] - self._first if self._recent else 0.0)
        return self._total / duration if duration > 0 else None


class ReadingSpeed:
    """Rows and bytes per second that this project's data sets read on all ranks. Not thread-safe: its owner locks."""

    def __init__(self, *, window: float = WINDOW) -> None:
        self._window = window
        self._seen: dict[int, deque[tuple[float, int, int]]] = {}  # by rank: seconds of its time splits, rows, bytes

    def add(self, split: TimeSplit) -> None:
        """Add a rank's time split so far."""
        seen = self._seen.setdefault(split.rank, deque([(0.0, 0, 0)]))
        seconds = sum(getattr(split, part) for part in PARTS)
        seen.append((seconds, split.rows, split.bytes_read))
        while len(seen) > 2 and seen[1][0] <= seconds - self._window:
            seen.popleft()

    def recent(self) -> tuple[float | None, float | None]:
        """Return recent rows and bytes per second, ``None`` for none."""
        return self._rates([(seen[0], seen[-1]) for seen in self._seen.values()])

    def overall(self) -> tuple[float | None, float | None]:
        """Return rows and bytes per second of the run so far, ``None`` for none."""
        return self._rates([((0.0, 0, 0), seen[-1]) for seen in self._seen.values()])

    def _rates(self, spans: list[tuple[tuple[float, int, int], tuple[float, int, int]]]) -> tuple[float | None, float | None]:
        spans = [(first, last) for first, last in spans if last[0] > first[0]]
        rows, nbytes = (sum((last[what] - first[what]) / (last[0] - first[0]) for first, last in spans) for what in (1, 2))
        return rows or None, nbytes or None


def duration(seconds: float) -> str:
    """Return a duration as text, ``1:02:03``, ``2:03 min`` or ``3.4 s``."""
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{whole:02}"
    return f"{minutes}:{whole:02} min" if minutes else f"{seconds:.1f} s"

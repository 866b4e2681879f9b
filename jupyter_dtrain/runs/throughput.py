"""How fast a run is, from the times at which its steps were finished."""

from __future__ import annotations

from collections import deque

WINDOW = 5.0
"""Seconds of event time over which samples per second are counted."""


class Throughput:
    """Samples per second, from the times at which steps were finished.

    A rate needs two steps: the samples of the second one were worked off in the time between them.
    """

    def __init__(self, *, window: float = WINDOW) -> None:
        self._window = window
        self._recent: deque[tuple[float, int]] = deque()
        self._in_window = 0  # samples of all of `_recent` but its first
        self._first: float | None = None
        self._total = 0  # samples after the first step

    def add(self, seconds: float, samples: int) -> float | None:
        """Count a step that was finished at `seconds` since the epoch; return :meth:`recent`."""
        if self._first is None:
            self._first = seconds
        else:
            self._total += samples
            self._in_window += samples
        self._recent.append((seconds, samples))
        # At least two stay: steps may be slower than the window is wide.
        while len(self._recent) > 2 and self._recent[1][0] <= seconds - self._window:
            self._recent.popleft()
            self._in_window -= self._recent[0][1]
        return self.recent()

    def recent(self) -> float | None:
        """Return the rate over the window that ends with the last step."""
        if len(self._recent) < 2:
            return None
        duration = self._recent[-1][0] - self._recent[0][0]
        return self._in_window / duration if duration > 0 else None

    def overall(self) -> float | None:
        """Return the rate over all steps."""
        if self._first is None or len(self._recent) < 2:
            return None
        duration = self._recent[-1][0] - self._first
        return self._total / duration if duration > 0 else None

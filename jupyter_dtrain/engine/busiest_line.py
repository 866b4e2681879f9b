"""Find the user's line that takes the most time outside models, loaders and optimizers, by sampling a few times a second.

A profiler would observe each call and slow all of them down. A line that takes a large part of a run is found by sampling within seconds,
at the cost of one look at the stack for each report.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import FrameType

from .user_frames import is_users

MIN_LOOKS = 3
MIN_PART = 1 / 3
"""Fraction of the samples: below it, no line stands out."""


class BusiestLine:
    """Samples the thread that created this object, from another thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._seen: Counter[tuple[str, int]] = Counter()

    def look(self) -> None:
        """Count the innermost user line that is running now."""
        frame: FrameType | None = sys._current_frames().get(self._thread)
        # The thread keeps running: Python 3.11 has returned an object that is no frame for a frame that had just ended.
        while isinstance(frame, FrameType) and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if isinstance(frame, FrameType) and frame.f_lineno:
            self._seen[frame.f_code.co_filename, frame.f_lineno] += 1

    def found(self) -> tuple[str, int]:
        """Return the file and line that was counted most often; line 0 if none stands out."""
        (place, times), *_ = self._seen.most_common(1) or [(("", 0), 0)]
        return place if times >= max(MIN_LOOKS, MIN_PART * self._seen.total()) else ("", 0)

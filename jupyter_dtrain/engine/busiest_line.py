"""Which of the user's own lines takes the time that no model, loader or optimizer takes: looked at a few times a second.

A profiler would see each call and slow all of them down. What takes a large part of a run is met by chance as well, within seconds,
at the cost of a look at the stack for each report.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import FrameType

from .user_frames import is_users

MIN_LOOKS = 3
MIN_PART = 1 / 3
"""Of the looks: lines that share the time more evenly are none to name."""


class BusiestLine:
    """Looks at the thread that made it, from another one."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._seen: Counter[tuple[str, int]] = Counter()

    def look(self) -> None:
        """Note the innermost of the user's lines that is running now."""
        frame: FrameType | None = sys._current_frames().get(self._thread)
        # The thread goes on meanwhile: Python 3.11 was seen to give something else than a frame for one that had just ended.
        while isinstance(frame, FrameType) and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if isinstance(frame, FrameType) and frame.f_lineno:
            self._seen[frame.f_code.co_filename, frame.f_lineno] += 1

    def found(self) -> tuple[str, int]:
        """Return the file and line that was met most often; line 0 where none stands out."""
        (place, times), *_ = self._seen.most_common(1) or [(("", 0), 0)]
        return place if times >= max(MIN_LOOKS, MIN_PART * self._seen.total()) else ("", 0)

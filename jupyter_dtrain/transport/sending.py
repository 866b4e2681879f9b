"""Progress messages for large values that are sent to the engines."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..system.resources import size_text

PATIENCE = 1.0
"""Seconds after which the first message is shown."""
INTERVAL = 0.2
"""Seconds between two messages."""


class Sending:
    """Show how many bytes are sent and at what rate, once sending takes longer than `PATIENCE`.

    Parameters
    ----------
    show : callable
        Takes a line, which replaces the one before.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._began = self._said = time.monotonic()
        self._is_shown = False

    def __call__(self, done: int, total: int) -> None:
        """Note that `done` bytes of `total` are sent."""
        now = time.monotonic()
        seconds = now - self._began
        if done >= total:
            if self._is_shown:
                self._show(f"{size_text(total)} were sent to the engines in {seconds:.1f} s ({size_text(total / seconds)}/s).")
        elif seconds >= PATIENCE and (not self._is_shown or now - self._said >= INTERVAL):
            self._said, self._is_shown = now, True
            percent = f"{done / total:.0%}"
            self._show(f"Sending {size_text(total)} to the engines: {percent}, {size_text(done / seconds)}/s")

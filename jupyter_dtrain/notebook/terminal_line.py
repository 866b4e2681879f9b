"""A run's progress in IPython's terminal: one line below the cell's output, overwritten in place.

A terminal has no view to update, and a new line for each state would bury the cell's output. If the output is not a terminal (a log),
states of a start are printed as lines, and those of a run are omitted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from .summary import reading_text

if TYPE_CHECKING:
    from ..runs.record import ViewedRun

INTERVAL = 0.25
"""Seconds between two states of a run."""
WIDTH = 79
"""Characters; a wrapped line cannot be overwritten."""


class TerminalLine:
    """The progress line.

    Parameters
    ----------
    stream : TextIO
        Where it is written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = ""
        self._due = 0.0

    def show(self, text: str) -> None:
        """Show `text` in place of what was shown before."""
        if text == self._shown:
            return
        if self._stream.isatty():
            shown = text[:WIDTH]
            self._stream.write("\r" + shown.ljust(min(WIDTH, len(self._shown))))
        else:
            self._stream.write(text + "\n")
        self._shown = text
        self._stream.flush()

    def show_run(self, run: ViewedRun) -> None:
        """Show a run's progress; clear the line once it has ended."""
        if not self._stream.isatty():
            return
        if run.has_ended:
            self.clear()
            return
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + INTERVAL
        state = run.run_update()
        read = reading_text(state)
        if state.step or read:
            step = f"step {state.step:,}" if state.step else None
            loss = None if state.loss is None else f"loss {state.loss:.4g}"
            done = None if state.fraction is None else f"{state.fraction:.0%}"
            left = None if state.remaining is None else f"ETA {_clock(state.remaining)}"
            self.show(f"{state.name}: " + " · ".join(filter(None, [step, loss, done, left, read])))

    def clear(self) -> None:
        """Clear the line before other output."""
        if self._shown and self._stream.isatty():
            self._stream.write("\r" + " " * min(WIDTH, len(self._shown)) + "\r")
            self._stream.flush()
            self._shown = ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

"""Show the progress of scanning files as a line that is overwritten, if that takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from .. import api
from ..system.resources import size_text

LONG = 1.0
"""Seconds after which the line is shown."""
INTERVAL = 0.25


class ProgressLine:
    """Progress line of work on several threads.

    Parameters
    ----------
    what : str
    total : int
        Final sum of the numbers given to `add`.
    in_bytes : bool
        Whether the numbers are bytes; otherwise they are files.
    """

    def __init__(self, what: str, total: int, *, in_bytes: bool) -> None:
        self._what, self._total, self._in_bytes = what, total, in_bytes
        self._done, self._shown = 0, 0
        self._began = monotonic()
        self._due = self._began + LONG
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        """Add `number` to what is done."""
        with self._lock:
            self._done += number
            now = monotonic()
            if now >= self._due:
                self._due = now + INTERVAL
                self._show(self._text(now - self._began))

    def _text(self, seconds: float) -> str:
        done, speed = self._done, self._done / seconds
        of = f"{size_text(done)} of {size_text(self._total)}" if self._in_bytes else f"{done:,} of {self._total:,} files"
        rate = size_text(speed) if self._in_bytes else f"{speed:,.0f}"
        return f"{self._what}: {done / max(1, self._total):.0%} · {of} · {rate}/s"

    def _show(self, text: str) -> None:
        # On an engine, the run's view shows progress; a log file needs no such lines.
        if api.current is None and (sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")):
            sys.stderr.write("\r" + text.ljust(self._shown))
            sys.stderr.flush()
            self._shown = len(text)

    def close(self) -> None:
        """Erase the line."""
        if self._shown:
            self._show("")
            sys.stderr.write("\r")
            sys.stderr.flush()


@contextmanager
def progress_line(what: str, total: int, *, in_bytes: bool) -> Iterator[ProgressLine]:
    """Show the progress of the ``with`` block if it takes long; see `ProgressLine`."""
    line = ProgressLine(what, total, in_bytes=in_bytes)
    try:
        yield line
    finally:
        line.close()

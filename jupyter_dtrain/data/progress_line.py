"""How far files are looked through before there is a data set: a line that is written over, once that takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from .. import api
from ..system.resources import size_text

LONG = 1.0
"""Seconds after which it is shown."""
INTERVAL = 0.25


class ProgressLine:
    """A line about work on several threads.

    Parameters
    ----------
    what : str
    total : int
        Of what `add` is told.
    in_bytes : bool
        Whether that are bytes; or else files.
    """

    def __init__(self, what: str, total: int, *, in_bytes: bool) -> None:
        self._what, self._total, self._in_bytes = what, total, in_bytes
        self._done, self._shown = 0, 0
        self._began = monotonic()
        self._due = self._began + LONG
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        """Note that so much more is done."""
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
        # On an engine the run's own view tells of it; a log needs no line for each moment.
        if api.current is None and (sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")):
            sys.stderr.write("\r" + text.ljust(self._shown))
            sys.stderr.flush()
            self._shown = len(text)

    def close(self) -> None:
        """Take the line away."""
        if self._shown:
            self._show("")
            sys.stderr.write("\r")
            sys.stderr.flush()


@contextmanager
def progress_line(what: str, total: int, *, in_bytes: bool) -> Iterator[ProgressLine]:
    """Show how far the ``with`` block is, if it takes long; see `ProgressLine`."""
    line = ProgressLine(what, total, in_bytes=in_bytes)
    try:
        yield line
    finally:
        line.close()

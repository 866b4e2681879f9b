"""Threads that a cell starts: one at a time may ask for what ranks exchange.

An exchange is the one that the others make at the same time. Of two threads that make some, nothing says which is first, and each rank
may take another one: what one of them reads would be another's value. So that is an error, as soon as a second thread asks while the
first may ask again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .whose import is_users


class Turns:
    """Which threads have asked for an exchange in a run, while it is installed. The cell's own is the one that installs it."""

    def __init__(self) -> None:
        self._own = self._last = threading.get_ident()
        self._others: list[threading.Thread] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let exchanges look, until the end of the ``with`` block."""
        global _current
        _current = self
        try:
            yield
        finally:
            _current = None

    def check(self) -> None:
        """Raise RuntimeError where another thread than this one may ask for an exchange too."""
        asking = threading.get_ident()
        if asking == self._last:
            return
        thread = threading.current_thread()
        if isinstance(thread, threading._DummyThread):  # of autograd's, for which the one waits that runs the pass
            return
        alive = [other for other in self._others if other.is_alive() and other is not thread]
        # A thread of a pool that waits for work does not ask; which one of several gets the next may differ between ranks.
        if any(map(_runs_users_code, alive)) if asking == self._own else alive:
            raise RuntimeError(
                "Two threads of the cell train, or read values over the batch, at the same time: on several engines these would get"
                " mixed up. Let one begin when the other has ended, or run the cell with `--engines 1`."
            )
        self._last = asking
        if asking != self._own and thread not in self._others:
            self._others.append(thread)


_current: Turns | None = None


def in_turn() -> None:
    """Look before a collective whether another thread may make one too; raises RuntimeError."""
    if _current is not None:
        _current.check()


def _runs_users_code(thread: threading.Thread) -> bool:
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False

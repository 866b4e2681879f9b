"""Threads that a cell starts: one at a time may ask for what ranks exchange.

An exchange is the one that the others make at the same time. Of two threads that make some, nothing says which is first, and each rank
may take another one: what one of them reads would be another's value. So a thread that asks after another one waits until no other can
ask, since each has ended or waits itself (for this one, mostly). Where one of them asks meanwhile, their order is chance: an error.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from types import FrameType
from weakref import WeakSet

from ..current_run import current_run
from ..user_frames import is_ours, is_users

_AWAKE = 0.01  # seconds in which a thread goes on whose wait has ended
_QUIET = 0.1  # seconds in which one does something that does not wait
_POLLS = 1.0  # seconds after which one that hardly runs is taken to wait, though it goes on now and then
_LONGEST = 10.0  # seconds after which one that goes on is taken to do something else than to ask, until it does


class Turns:
    """Which thread asks for exchanges in a run, while it is installed. The cell's own is the one that installs it."""

    def __init__(self) -> None:
        self._own = self._last = threading.get_ident()
        self._before = WeakSet(threading.enumerate())
        self._do_else: WeakSet[threading.Thread] = WeakSet()  # that have gone on for long and have not asked
        self._lock = threading.Lock()
        self._waiting = self._mixed = False
        self._progress: dict[threading.Thread, tuple[object, float]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let exchanges look, until the end of the ``with`` block; raises RuntimeError there if threads were mixed up that told nobody."""
        with current_run.having(turns=self):
            yield
            if self._mixed:
                raise _mixed()

    def check(self) -> None:
        """Wait until no other thread than this one can ask for an exchange; raises RuntimeError where one asks as well."""
        if isinstance(threading.current_thread(), threading._DummyThread):
            return  # of autograd's, for which the one waits that runs the pass
        asking = threading.get_ident()
        with self._lock:
            self._mixed = self._mixed or self._waiting
            if self._mixed:
                raise _mixed()
            if asking == self._last:
                return
            self._waiting = True
            self._do_else.discard(threading.current_thread())
        try:
            self._wait_for_others()
            self._last = asking
        finally:
            self._waiting = False

    def _wait_for_others(self) -> None:
        begin = time.monotonic()
        ran: dict[threading.Thread, float] = {}
        while busy := [thread for thread in self._that_may_ask() if not self._rests(thread)]:
            time.sleep(0.001)
            waited = time.monotonic() - begin
            for thread in busy:
                ran.setdefault(thread, _scheduled(thread)[0])
            hardly_run = all(_scheduled(thread)[0] - ran[thread] < waited / 10 for thread in busy)
            if waited >= (_POLLS if hardly_run else _LONGEST) and not any(map(_in_exchange, busy)):
                self._do_else.update(busy)
                return
            if self._mixed:
                raise _mixed()

    def _that_may_ask(self) -> list[threading.Thread]:
        """Return the other threads that run the user's code, or may begin to."""
        others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
        # The cell's own does not wait for threads of a pool that have nothing of the user's to do: they are the ones to wait for it.
        begins = threading.get_ident() != self._own
        may = [thread for thread in others if _runs_users_code(thread) or (begins and thread not in self._before)]
        return [thread for thread in may if thread not in self._do_else]

    def _rests(self, thread: threading.Thread) -> bool:
        """Return whether a thread has not gone on for so long that it waits for something."""
        frame = _innermost(thread)
        if frame is None:
            return True
        ran, runnable = _scheduled(thread)
        now, progress = time.monotonic(), (id(frame), frame.f_lasti, ran)
        before, since = self._progress.get(thread, (None, now))
        if progress != before or runnable:
            since = now
        self._progress[thread] = progress, since
        return not _in_exchange(thread) and now - since >= (_AWAKE if _waits(frame) else _QUIET)


def in_turn() -> None:
    """Wait before a collective until no other thread can make one too; raises RuntimeError where another thread tries."""
    if current_run.turns is not None:
        current_run.turns.check()


def _mixed() -> RuntimeError:
    return RuntimeError(
        "Two threads of the cell train, or read values over the batch, at the same time: their order would differ between engines."
        " Run one after the other, or run the cell with `--engines 1`."
    )


def _scheduled(thread: threading.Thread) -> tuple[float, bool]:
    """Return how many seconds a thread has run or waited for a processor, and whether it does now; 0 where the system does not tell."""
    try:
        task = Path(f"/proc/self/task/{thread.native_id}")  # Linux's
        ran, waited, _ = (task / "schedstat").read_text().split()
        return (int(ran) + int(waited)) * 1e-9, (task / "stat").read_text().rpartition(")")[2].split()[0] in "RD"
    except OSError:
        return 0.0, False


def _innermost(thread: threading.Thread) -> FrameType | None:
    return sys._current_frames().get(thread.ident or 0)


def _frames(thread: threading.Thread) -> Iterator[FrameType]:
    frame = _innermost(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _runs_users_code(thread: threading.Thread) -> bool:
    return any(is_users(frame.f_code.co_filename) for frame in _frames(thread))


def _in_exchange(thread: threading.Thread) -> bool:
    """Return whether a thread is in this project's own code, on behalf of the user's: it waits for other ranks there."""
    called = takewhile(lambda frame: not is_users(frame.f_code.co_filename), _frames(thread))
    return any(is_ours(frame.f_code.co_filename) for frame in called)


def _waits(frame: FrameType) -> bool:
    """Return whether a thread waits for another by Python's own means."""
    return frame.f_code.co_filename == threading.__file__ and frame.f_code.co_name in ("wait", "join", "_wait_for_tstate_lock")

"""Let only one thread of a cell at a time run collectives.

Collectives match by their order on each rank. If two threads run some, the order may differ between ranks, and one thread would get the
values meant for the other. A thread that wants a collective after another thread had one therefore waits until no other thread can start
one: each has ended or is blocked (mostly on this one). If another thread starts a collective meanwhile, the order is undefined: an error.
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

_AWAKE = 0.01  # seconds without progress after which a thread in a wait of `threading` counts as blocked
_QUIET = 0.1  # seconds without progress after which any other thread counts as blocked
_POLLS = 1.0  # seconds after which a thread that hardly runs counts as blocked, though it makes progress now and then (it polls)
_LONGEST = 10.0  # seconds after which a running thread is taken to run no collectives, until it does


class Turns:
    """Tracks which thread runs collectives, while it is installed. The thread that makes it is the cell's own."""

    def __init__(self) -> None:
        self._own = self._last = threading.get_ident()
        self._before = WeakSet(threading.enumerate())
        self._do_else: WeakSet[threading.Thread] = WeakSet()  # have run for long without a collective
        self._lock = threading.Lock()
        self._waiting = self._mixed = False
        self._progress: dict[threading.Thread, tuple[object, float]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let collectives check their thread, until the end of the ``with`` block.

        Raises
        ------
        RuntimeError
            At the end, if two threads ran collectives at the same time, and the error was lost in one of them.
        """
        with current_run.having(turns=self):
            yield
            if self._mixed:
                raise _mixed()

    def check(self) -> None:
        """Wait until no other thread can start a collective.

        Raises
        ------
        RuntimeError
            Another thread starts one while this thread waits.
        """
        if isinstance(threading.current_thread(), threading._DummyThread):
            return  # a thread of autograd: the thread that runs the backward pass waits for it
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
        """Return the other threads that run the user's code or may begin to."""
        others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
        # The cell's own thread does not wait for idle threads of a pool: they wait for it to give them work.
        begins = threading.get_ident() != self._own
        may = [thread for thread in others if _runs_users_code(thread) or (begins and thread not in self._before)]
        return [thread for thread in may if thread not in self._do_else]

    def _rests(self, thread: threading.Thread) -> bool:
        """Return whether a thread has made no progress for so long that it counts as blocked."""
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
    """Wait before a collective until no other thread can start one. RuntimeError if another thread tries meanwhile."""
    if current_run.turns is not None:
        current_run.turns.check()


def _mixed() -> RuntimeError:
    return RuntimeError(
        "Two threads of the cell train, or read values over the batch, at the same time: their order would differ between engines."
        " Run one after the other, or run the cell with `--engines 1`."
    )


def _scheduled(thread: threading.Thread) -> tuple[float, bool]:
    """Return the seconds that a thread has run or been runnable, and whether it runs or is in an uninterruptible sleep; 0 if unknown."""
    try:
        task = Path(f"/proc/self/task/{thread.native_id}")  # Linux
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
    """Return whether a thread is in this project's code, called from the user's: it may wait for other ranks there."""
    called = takewhile(lambda frame: not is_users(frame.f_code.co_filename), _frames(thread))
    return any(is_ours(frame.f_code.co_filename) for frame in called)


def _waits(frame: FrameType) -> bool:
    """Return whether `frame` is in a wait or join of Python's `threading`."""
    return frame.f_code.co_filename == threading.__file__ and frame.f_code.co_name in ("wait", "join", "_wait_for_tstate_lock")

"""The engine's end of the line to the notebook kernel: what it shows, and what it is told while it is busy.

Both ways are ipyparallel's own. Its control channel is served by a thread of its own, so a command arrives in the middle of a cell.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any, TextIO

from ...protocol import Order, parse
from ...system.patches import put
from ..side_effects.shown_output import Shown

CONTROL_MESSAGE = "dtrain_order"
AGAIN = timedelta(milliseconds=10)  # between looks at what an interrupt is put off for
PUT_OFF = timedelta(seconds=1)
STDERR = 2  # the file of the process


def orders_to(handler: Callable[[Order], None]) -> None:
    """Hand orders of the notebook kernel to `handler`, on the control thread, until another handler takes its place.

    An order may reach a rank that is through with its cell while another waits for its answer.
    """
    from IPython import get_ipython

    kernel = get_ipython().kernel

    def handle(stream: Any, ident: Any, message: dict[str, Any]) -> None:
        # ipyparallel's client keeps a request until it is answered.
        kernel.session.send(stream, f"{CONTROL_MESSAGE}_reply", {"status": "ok"}, ident=ident, parent=message)
        order = parse(message["content"])
        if isinstance(order, Order):
            handler(order)

    kernel.control_handlers[CONTROL_MESSAGE] = handle


@contextlib.contextmanager
def output_of(rank: int, shown: Shown | None) -> Iterator[None]:
    """Show what the rank prints, less what was shown before a restart, or nothing of it (``None``). Figures are rank 0's.

    What goes to ``stderr`` and is not shown is in the engine's log, whose end is told where the engine is lost.
    """
    if shown is not None:
        with shown.installed():
            yield
            if rank == 0:
                _show_figures()
        return
    with contextlib.redirect_stdout(_Unseen(sys.stdout)), contextlib.redirect_stderr(_Logged(sys.stderr)):
        yield


def look_like_a_notebook() -> None:
    """Let libraries find a builtin ``get_ipython``, by which they tell a notebook when they are imported: its progress bars come along."""
    from IPython import get_ipython

    put(builtins, "get_ipython", get_ipython)  # IPython has it there while it runs a cell of its own


@contextlib.contextmanager
def shell_in(namespace: dict[str, Any]) -> Iterator[None]:
    """Let magics in the cell (``%time``) see its names."""
    from IPython import get_ipython

    shell = get_ipython()
    before, shell.user_ns = shell.user_ns, namespace
    try:
        yield
    finally:
        shell.user_ns = before


class Interrupts:
    """Keyboard interrupts break off the cell and nothing else: neither the way of its results home nor an engine's own work.

    To be made at the start of a task. IPython sets its own handler before each task and after it, so nothing is put back.

    Parameters
    ----------
    not_here : callable
        Says of a frame whether code is running that is not to be left half done. It is let finish, for a second at most.

    Attributes
    ----------
    on_interrupt : callable
        Called just before an interrupt is raised.
    raised : bool
        One was.
    """

    def __init__(self, not_here: Callable[[FrameType | None], bool]) -> None:
        self._open, self._not_here = False, not_here
        self.on_interrupt: Callable[[], None] = lambda: None
        self.raised = False
        self._later: threading.Timer | None = None
        self._since: float | None = None  # that an interrupt is put off
        if threading.current_thread() is threading.main_thread():  # no other gets them
            signal.signal(signal.SIGINT, self._handle)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Let an interrupt be a ``KeyboardInterrupt`` here."""
        self._open = True
        try:
            yield
        finally:
            self._open = False
            if self._later is not None:
                self._later.cancel()

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        if not self._open:
            return
        if self._not_here(frame):
            self._since = self._since or time.monotonic()
            if time.monotonic() - self._since < PUT_OFF.total_seconds():
                # To the main thread, which may sit in a call by then that only a signal of its own ends.
                main = threading.main_thread().ident
                self._later = threading.Timer(AGAIN.total_seconds(), signal.pthread_kill, [main, signal.SIGINT])
                self._later.start()
                return
        self._since = None
        self.on_interrupt()
        self.raised = True
        raise KeyboardInterrupt


def _show_figures() -> None:
    """Show the figures that the cell drew and did not show, as a notebook does at the end of a cell."""
    backend = sys.modules.get("matplotlib_inline.backend_inline")
    if backend is not None:
        backend.flush_figures()


class _Unseen:
    """Takes the place of a `stream` that a notebook shows on rank 0 alone, and is like it in all else: a library may want its file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing: nothing is kept back."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Logged(_Unseen):
    """One whose text is in the engine's log."""

    def write(self, text: str) -> int:
        try:
            file = self._stream.fileno()
        except io.UnsupportedOperation:  # ipykernel has not taken the place of the process's own
            file = STDERR
        with contextlib.suppress(OSError):  # no room
            os.write(file, text.encode(errors="replace"))
        return len(text)

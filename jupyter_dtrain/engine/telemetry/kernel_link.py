"""The engine's connection to the notebook kernel: its output, and orders that arrive while it is busy.

Both use ipyparallel's channels. The control channel has a thread of its own, so an order arrives in the middle of a cell.
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
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

from ...capture.shell_state import shell_of_notebook
from ...protocol import Order, parse
from ...system.patches import put
from ...system.stream_proxy import StreamProxy
from ..side_effects.shown_output import Shown

CONTROL_MESSAGE = "dtrain_order"
AGAIN = timedelta(milliseconds=10)  # between looks at what an interrupt is put off for
PUT_OFF = timedelta(seconds=1)
STDERR = 2  # the file of the process


def orders_to(handler: Callable[[Order], None]) -> None:
    """Pass orders of the notebook kernel to `handler`, on the control thread, until another handler replaces it.

    An order may reach a rank that has finished its cell, while another rank waits for its answer.
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
    """Show the output of the rank that was not shown before a restart, or none of it (``None``). Only rank 0 shows figures.

    Hidden output to ``stderr`` goes to the engine's log, whose end is shown if the engine is lost.
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
    """Provide a builtin ``get_ipython``, by which libraries detect a notebook on import, for its progress bars."""
    from IPython import get_ipython

    put(builtins, "get_ipython", get_ipython)  # IPython has it there while it runs a cell of its own


def shell_in(namespace: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Let magics in the cell (``%time``) use its namespace."""
    from IPython import get_ipython

    return shell_of_notebook(get_ipython(), namespace)


class Interrupts:
    """Keyboard interrupts that end the cell only, and not the return of its results or the engine's own work.

    Made at the start of a task. IPython sets its own handler before and after each task, so none is restored.

    Parameters
    ----------
    not_here : callable
        Returns whether a frame runs code that must not be interrupted. It may finish, for a second at most.

    Attributes
    ----------
    on_interrupt : callable
        Called just before an interrupt is raised.
    raised : bool
        Whether an interrupt was raised.
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
        """Let an interrupt raise ``KeyboardInterrupt`` here."""
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
    """Show the open figures of the cell, as a notebook does at the end of a cell."""
    backend = sys.modules.get("matplotlib_inline.backend_inline")
    if backend is not None:
        backend.flush_figures()


class _Unseen(StreamProxy):
    """Replaces a stream whose output is hidden."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Do nothing: the stream is not buffered."""


class _Logged(_Unseen):
    """A hidden stream whose text goes to the engine's log."""

    def write(self, text: str) -> int:
        try:
            file = self._stream.fileno()
        except io.UnsupportedOperation:  # ipykernel has not taken the place of the process's own
            file = STDERR
        with contextlib.suppress(OSError):  # no room
            os.write(file, text.encode(errors="replace"))
        return len(text)

"""The engine's end of the line to the notebook kernel: what it publishes, and what it is told while it is busy.

Both ways are ipyparallel's own. Its control channel is served by a thread of its own, so a command arrives in the middle of a cell.
"""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .emit import Publish
from .shown import Shown

CONTROL_MESSAGE = "dtrain_command"


def publisher() -> Publish:
    """Return a function that publishes data as part of the task that is running now; any thread may call it."""
    from ipykernel.zmqshell import ZMQInteractiveShell
    from ipyparallel.serialize import serialize_object

    channel = ZMQInteractiveShell.instance().data_pub
    parent = channel.parent_header  # of this task: the channel's own changes with the next message

    def publish(data: dict[str, Any]) -> None:
        channel.session.send(
            channel.pub_socket,
            "data_message",
            content={"keys": list(data)},
            parent=parent,
            buffers=serialize_object(data),
            ident=channel.topic,
        )

    return publish


def commands_to(handler: Callable[..., None]) -> None:
    """Hand commands from the notebook kernel to `handler`, on the control thread, until another handler takes its place.

    A command may reach a rank that is through with its cell while another waits for its answer.
    """
    from IPython import get_ipython

    def handle(_stream: Any, _ident: Any, message: dict[str, Any]) -> None:
        handler(**message["content"])

    get_ipython().kernel.control_handlers[CONTROL_MESSAGE] = handle


@contextlib.contextmanager
def output_of(rank: int, shown: Shown | None) -> Iterator[None]:
    """Show what the rank prints, less what was shown before a restart, or nothing of it (``None``). Figures are rank 0's."""
    if shown is not None:
        with shown.installed():
            yield
            if rank == 0:
                _show_figures()
        return
    with contextlib.redirect_stdout(_Nowhere()), contextlib.redirect_stderr(_Nowhere()):
        yield


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
    """

    def __init__(self) -> None:
        self._open = False
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

    def _handle(self, _number: int, _frame: object) -> None:
        if self._open:
            raise KeyboardInterrupt


def _show_figures() -> None:
    """Show the figures that the cell drew and did not show, as a notebook does at the end of a cell."""
    backend = sys.modules.get("matplotlib_inline.backend_inline")
    if backend is not None:
        backend.flush_figures()


class _Nowhere(io.TextIOBase):
    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)

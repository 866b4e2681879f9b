"""The engine's end of the line to the notebook kernel: what it publishes, and what it is told while it is busy.

Both ways are ipyparallel's own. Its control channel is served by a thread of its own, so a command arrives in the middle of a cell.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .emit import Publish

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


@contextlib.contextmanager
def commands_to(handler: Callable[[str], None]) -> Iterator[None]:
    """Hand commands from the notebook kernel to `handler`, on the control thread."""
    from IPython import get_ipython

    handlers = get_ipython().kernel.control_handlers
    handlers[CONTROL_MESSAGE] = lambda _stream, _ident, message: handler(message["content"]["command"])
    try:
        yield
    finally:
        handlers[CONTROL_MESSAGE] = lambda *_: None


@contextlib.contextmanager
def output_of(rank: int) -> Iterator[None]:
    """Show what rank 0 prints and nothing of the others: they print the same."""
    if rank == 0:
        yield
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

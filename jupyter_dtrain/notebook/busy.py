"""Keep the kernel's status "busy" while a cell runs, also after messages on a subshell.

ipykernel publishes "idle" at the end of every message, also on a subshell. Front ends and hubs then take the kernel for idle, and an idle
kernel may be culled. So after each such message, the loop that has published "idle" publishes "busy" again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

_lock = threading.Lock()
_running: list[tuple[Any, dict[str, Any]]] = []
"""Kernel and request of the running cell."""


@contextmanager
def busy(shell: InteractiveShell) -> Iterator[None]:
    """Keep the kernel busy until the end of the ``with`` block."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or _running:  # a terminal, or a cell within a cell
        yield
        return
    with _lock:
        _running.append((kernel, kernel.get_parent("shell")))
    try:
        yield
    finally:
        with _lock:  # so that no "busy" follows ipykernel's final "idle"
            _running.clear()


def keep_busy() -> None:
    """Publish "busy" again after the current message; called by the message's handler."""
    if not _running:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    loop.call_soon(_publish)


def _publish() -> None:
    with _lock:
        for kernel, request in _running:
            topic = f"kernel.{kernel.ident}.status".encode()
            kernel.session.send(kernel.iopub_socket, "status", {"execution_state": "busy"}, parent=request, ident=topic)

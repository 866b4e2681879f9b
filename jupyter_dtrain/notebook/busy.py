"""The kernel's status while a cell runs: busy, also after an answer on a subshell.

ipykernel says "idle" at the end of every message, one on a subshell too, and front ends and hubs believe it until the cell ends: an
idle kernel may be culled. So after each such message it is said that the cell runs still, in the loop that has published the "idle".
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
"""Kernel and request of the cell that is running."""


@contextmanager
def busy(shell: InteractiveShell) -> Iterator[None]:
    """Let the kernel count as busy until the end."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or _running:  # a terminal; or a cell within a cell
        yield
        return
    with _lock:
        _running.append((kernel, kernel.get_parent("shell")))
    try:
        yield
    finally:
        with _lock:  # what is said from now on is said by ipykernel, after it
            _running.clear()


def keep_busy() -> None:
    """Say that the cell runs still, once the message that is being handled has been; called by its handler."""
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

"""An event loop for a cell that awaits, in the thread that runs the cell.

An engine's main thread runs a loop already: the one that received the task, which stands still until the cell is done. The
cell's own loop runs inside it. asyncio forbids that for a callback that forgot where it is; here it is what is wanted, so the
outer loop and its task are put aside for as long.
"""

from __future__ import annotations

import asyncio
from asyncio import events, tasks
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

CANCEL_TIMEOUT = 5.0  # seconds for what the cell has left behind to take notice


class CellLoop:
    """Runs the coroutines of one cell, one after the other, on a loop that starts with the first of them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what `coroutine` comes to."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        with _outer_loop_aside():
            return self._loop.run_until_complete(coroutine)

    def close(self) -> None:
        """Cancel what the cell has started and not awaited, and let go of the loop."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        with _outer_loop_aside():
            try:
                pending = asyncio.all_tasks(loop)
                for task in pending:
                    task.cancel()
                if pending:
                    loop.run_until_complete(asyncio.wait(pending, timeout=CANCEL_TIMEOUT))
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                loop.close()


@contextmanager
def _outer_loop_aside() -> Iterator[None]:
    outer = events._get_running_loop()
    if outer is None:
        yield
        return
    # Since Python 3.12 it is not the loop but the thread that has a current task.
    swap = getattr(tasks, "_swap_current_task", lambda _loop, task: task)
    task = swap(outer, None)
    events._set_running_loop(None)
    try:
        yield
    finally:
        events._set_running_loop(outer)
        swap(outer, task)

"""What other threads leave to be done by the one that runs the notebook's cells, as output that another shows belongs to no cell."""

from __future__ import annotations

import queue
from collections.abc import Callable
from datetime import timedelta


class Inbox:
    """Things to do, in the order in which they came."""

    def __init__(self) -> None:
        self._left: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def leave(self, action: Callable[[], None]) -> None:
        """Leave something to be done. Any thread may call this."""
        self._left.put(action)

    def wake(self) -> None:
        """Let who waits look around. Any thread may call this, and a signal's handler."""
        self._left.put(None)

    def work(self, wait: timedelta) -> None:
        """Do all that there is; wait for something at most `wait`."""
        try:
            action = self._left.get(timeout=wait.total_seconds())
        except queue.Empty:
            return
        while True:
            if action is not None:
                action()
            try:
                action = self._left.get_nowait()
            except queue.Empty:
                return

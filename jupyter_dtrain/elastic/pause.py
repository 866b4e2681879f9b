"""The pauses of a run: which one is asked for, and whether all ranks wait in it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..errors import UsageError
from ..protocol import Message, Paused


class Pauses:
    """Counts the pauses of a run. Any thread may call any of it.

    Parameters
    ----------
    world_size : int
    on_paused : callable
        Told when all ranks have come to wait.
    """

    def __init__(self, world_size: int, *, on_paused: Callable[[], None]) -> None:
        self._world_size, self._on_paused = world_size, on_paused
        self._lock = threading.Lock()
        self._number = 0
        self._active = False
        self._waiting: set[int] = set()

    @property
    def reached(self) -> bool:
        """Whether all ranks wait."""
        with self._lock:
            return self._active and len(self._waiting) == self._world_size

    def start(self) -> int:
        """Return the number of a new pause; a `UsageError`: there is one."""
        with self._lock:
            if self._active:
                raise UsageError("The run is paused already.")
            self._number, self._active, self._waiting = self._number + 1, True, set()
            return self._number

    def end(self) -> int:
        """Return the number of the pause that ends; a `UsageError`: there is none."""
        with self._lock:
            if not self._active:
                raise UsageError("The run is not paused.")
            self._active = False
            return self._number

    def resume(self, world_size: int) -> int:
        """Say that other ranks take over, so many, and return the number of the pause that they are to wait in, 0 if there is none."""
        with self._lock:
            self._world_size, self._waiting = world_size, set()
            return self._number if self._active else 0

    def note(self, event: Message) -> None:
        """Take what a rank reports."""
        if not isinstance(event, Paused):
            return
        with self._lock:
            if not self._active or event.number != self._number or event.rank in self._waiting:
                return
            self._waiting.add(event.rank)
            if len(self._waiting) == self._world_size:
                self._on_paused()  # with the lock held: nobody is told of a pause that is over

"""Pauses of a run: the one that is requested, and whether all ranks wait in it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..errors import UsageError
from ..protocol import Message, Paused


class Pauses:
    """Count the pauses of a run. Any thread may call any method.

    Parameters
    ----------
    world_size : int
    on_paused : callable
        Called when all ranks wait.
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
        """Start a pause and return its number; raise a `UsageError` if there is one already."""
        with self._lock:
            if self._active:
                raise UsageError("The run is paused already.")
            self._number, self._active, self._waiting = self._number + 1, True, set()
            return self._number

    def end(self) -> int:
        """End a pause and return its number; raise a `UsageError` if there is none."""
        with self._lock:
            if not self._active:
                raise UsageError("The run is not paused.")
            self._active = False
            return self._number

    def resume(self, world_size: int) -> int:
        """Begin a generation of `world_size` ranks; return the number of the pause that they must wait in, 0 if there is none."""
        with self._lock:
            self._world_size, self._waiting = world_size, set()
            return self._number if self._active else 0

    def note(self, event: Message) -> None:
        """Note that a rank waits, if `event` says so."""
        if not isinstance(event, Paused):
            return
        with self._lock:
            if not self._active or event.number != self._number or event.rank in self._waiting:
                return
            self._waiting.add(event.rank)
            if len(self._waiting) == self._world_size:
                self._on_paused()  # with the lock held, so that no pause is reported after its end

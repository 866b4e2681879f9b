"""Stand-ins that tests of several parts use: a clock that goes on when a test says so, an emitter that keeps what is told, a trap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jupyter_dtrain.protocol import Message


class Clock:
    """Seconds, as the test says. Called as ``time.monotonic`` is.

    Parameters
    ----------
    now : float
        What it shows first.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        """Let time go by."""
        self.now += seconds


class FakeEmitter:
    """Keeps what an engine tells the kernel, and asks those who have something to tell when it is flushed."""

    def __init__(self) -> None:
        self._emitted: list[Message] = []
        self._asked: list[Message] = []
        self._sources: list[Callable[[], list[Message]]] = []

    @property
    def told(self) -> list[Message]:
        """All that was emitted, and what the last flush has brought."""
        return [*self._emitted, *self._asked]

    def emit(self, message: Message) -> None:
        self._emitted.append(message)

    def add_source(self, source: Callable[[], list[Message]]) -> None:
        self._sources.append(source)

    def flush(self) -> None:
        self._asked = [message for source in self._sources for message in source()]

    def of(self, kind: type[Any]) -> list[Any]:
        """Return what was told of one kind."""
        return [message for message in self.told if isinstance(message, kind)]


class Trap:
    """Notes that it was unpickled, which nothing may be that somebody else has written."""

    sprung = False

    def __reduce__(self) -> Any:
        return setattr, (Trap, "sprung", True)

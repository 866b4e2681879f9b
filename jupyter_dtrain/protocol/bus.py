"""A bus: who has something to tell publishes it once, and whoever has subscribed to its type is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Event = TypeVar("_Event")


class Bus:
    """Delivers events by their types, on the thread that publishes them, in the order of the subscriptions.

    What a subscriber raises, its publisher gets.
    """

    def __init__(self) -> None:
        self._subscribers: list[tuple[type[Any], Callable[[Any], None]]] = []
        self._by_type: dict[type, tuple[Callable[[Any], None], ...]] = {}

    def subscribe(self, kind: type[_Event], subscriber: Callable[[_Event], None]) -> None:
        """Let `subscriber` be told of each event of this type, or of one below it."""
        self._subscribers.append((kind, subscriber))
        self._by_type.clear()

    def publish(self, event: object) -> None:
        """Tell those who have subscribed to what `event` is."""
        kind = type(event)
        if (found := self._by_type.get(kind)) is None:
            found = self._by_type[kind] = tuple(told for above, told in self._subscribers if issubclass(kind, above))
        for subscriber in found:
            subscriber(event)

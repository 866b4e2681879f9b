"""A bus for events within a process: an event is published once, and all subscribers to its type are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Event = TypeVar("_Event")


class Bus:
    """Deliver events by their types, on the publishing thread, in the order of the subscriptions.

    An exception of a subscriber propagates to the publisher.
    """

    def __init__(self) -> None:
        self._subscribers: list[tuple[type[Any], Callable[[Any], None]]] = []
        self._by_type: dict[type, tuple[Callable[[Any], None], ...]] = {}

    def subscribe(self, kind: type[_Event], subscriber: Callable[[_Event], None]) -> None:
        """Call `subscriber` with each event of this type or a subclass."""
        self._subscribers.append((kind, subscriber))
        self._by_type.clear()

    def publish(self, event: object) -> None:
        """Call the subscribers to the type of `event`."""
        kind = type(event)
        if (found := self._by_type.get(kind)) is None:
            found = self._by_type[kind] = tuple(told for above, told in self._subscribers if issubclass(kind, above))
        for subscriber in found:
            subscriber(event)

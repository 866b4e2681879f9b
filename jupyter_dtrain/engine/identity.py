"""What is known of objects that may go, by their identity.

As ``torch.utils.weak.WeakIdKeyDictionary``, which takes ten times as long to look into: here that is done many times in each step.
By identity, because a user's module may define a hash of its own, which fails before it is made and changes with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class IdentityMap(Generic[T]):
    """Values by the identity of objects, each kept as long as its object."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], T]] = {}

    def get(self, key: object) -> T | None:
        """Return the value of `key`, ``None`` if it has none."""
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def set(self, key: object, value: T) -> T:
        """Give `key` a value, and return that."""
        self._entries[id(key)] = weakref.ref(key, partial(self._forget, id(key))), value
        return value

    def remove(self, key: object) -> None:
        """Forget the value of `key`."""
        self._entries.pop(id(key), None)

    def items(self) -> Iterator[tuple[Any, T]]:
        """Yield the objects that there are, with their values."""
        for reference, value in list(self._entries.values()):
            if (key := reference()) is not None:
                yield key, value

    def values(self) -> Iterator[T]:
        """Yield the values of the objects that there are."""
        return (value for _, value in self.items())

    def _forget(self, number: int, dead: object) -> None:
        if number in self._entries and self._entries[number][0] is dead:
            del self._entries[number]

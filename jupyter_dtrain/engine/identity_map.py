"""A weak map by identity.

``torch.utils.weak.WeakIdKeyDictionary`` does the same, but lookups take ten times as long, and there are many in each step. Keys are
compared by identity, because a user's module may define a hash that fails before ``__init__`` or changes with its state.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class IdentityMap(Generic[T]):
    """Values by identity of their objects, each kept as long as its object."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], T]] = {}

    def get(self, key: object) -> T | None:
        """Return the value of `key`; ``None`` if it has none."""
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def set(self, key: object, value: T) -> T:
        """Set the value of `key`, and return the value."""
        self._entries[id(key)] = weakref.ref(key, partial(self._forget, id(key))), value
        return value

    def remove(self, key: object) -> None:
        """Remove the value of `key`."""
        self._entries.pop(id(key), None)

    def items(self) -> Iterator[tuple[Any, T]]:
        """Yield the objects that are alive, with their values."""
        for reference, value in list(self._entries.values()):
            if (key := reference()) is not None:
                yield key, value

    def values(self) -> Iterator[T]:
        """Yield the values of the objects that are alive."""
        return (value for _, value in self.items())

    def _forget(self, number: int, dead: object) -> None:
        if number in self._entries and self._entries[number][0] is dead:
            del self._entries[number]


def cached_by_class(function: Callable[[type[Any]], T]) -> Callable[[type[Any]], T]:
    """Cache what `function`, which does not return ``None``, returns for each class, as long as the class is there.

    A class of the notebook keeps the globals of its methods alive, and with them all models and data of the cell. So ``functools.cache``
    would keep the memory of a cell for as long as the engine runs.
    """
    found: IdentityMap[T] = IdentityMap()

    @wraps(function)
    def cached(kind: type[Any]) -> T:
        known = found.get(kind)
        return found.set(kind, function(kind)) if known is None else known

    return cached

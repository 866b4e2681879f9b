"""Counters: numbers and strings that samplers, collate functions and their owners keep in attributes between batches."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any

_PLAIN = int | float | str | None


class Counters:
    """A saved copy of an object's plain attributes."""

    def __init__(self, owner: Any) -> None:
        self._owner, self._values = owner, _plain_in(owner)

    def have_changed(self) -> bool:
        """Return whether they have changed since."""
        return _plain_in(self._owner) != self._values

    def set(self) -> None:
        """Restore the saved attributes."""
        attributes = vars(self._owner)
        for name in _plain_in(self._owner).keys() - self._values.keys():
            del attributes[name]
        attributes.update(self._values)


def keeper_of(function: Any) -> Any:
    """Return the object in which a collate function may keep attributes: its instance or itself; ``None`` without a ``__dict__``."""
    while isinstance(function, partial):
        function = function.func
    keeper = function.__self__ if isinstance(function, MethodType) else function
    return keeper if not isinstance(keeper, type) and isinstance(getattr(keeper, "__dict__", None), dict) else None


def _plain_in(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if isinstance(value, _PLAIN)}

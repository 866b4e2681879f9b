"""Counters: numbers and texts that samplers, collate functions and what these belong to keep in their attributes between batches."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any

_PLAIN = int | float | str | None


class Counters:
    """The plain attributes of an object, as they are now."""

    def __init__(self, owner: Any) -> None:
        self._owner, self._values = owner, _plain_in(owner)

    def have_changed(self) -> bool:
        """Return whether they are others now."""
        return _plain_in(self._owner) != self._values

    def set(self) -> None:
        """Make them the present ones."""
        attributes = vars(self._owner)
        for name in _plain_in(self._owner).keys() - self._values.keys():
            del attributes[name]
        attributes.update(self._values)


def keeper_of(function: Any) -> Any:
    """Return what a collate function may keep attributes in: the object that it is a method of, or itself; ``None``: it has none."""
    while isinstance(function, partial):
        function = function.func
    keeper = function.__self__ if isinstance(function, MethodType) else function
    return keeper if not isinstance(keeper, type) and isinstance(getattr(keeper, "__dict__", None), dict) else None


def _plain_in(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if isinstance(value, _PLAIN)}

"""Changes that a cell makes to a model's code between its calls: a part that it adds or replaces, a function that it binds anew.

A changed model is checked like a new one (see `ways`). Each call compares identities of modules, if one has been registered since the last
call, and of the functions that the model's code names.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from types import FunctionType
from typing import Any

from torch import nn

from ..code_inspection import NO_CALL
from ..module_tree import modules_in, num_registered
from ..user_frames import is_users_module

CONTAINERS = (list, tuple, dict, set)
MOST_ITEMS = 100
"""Most items of a container that are looked at: it may be data."""
_MOST = 8
"""Most changes that are noticed: a cell may bind a function anew in each step."""


class CodeChanges:
    """Counts the changes of one model's code."""

    def __init__(self) -> None:
        self._registered: int | None = None
        self._parts: tuple[int, ...] | None = None
        self._places: list[Callable[[], Any]] = []
        self._code: list[Any] = []
        self._count = 0

    def follow(self, places: Iterable[Callable[[], Any]]) -> None:
        """Look at these from now on: functions that return a function, an object, or a container of such."""
        self._places = list(places)
        self._code = [_identity(place()) for place in self._places]

    def count(self, model: nn.Module) -> int:
        """Return the number of changes so far."""
        if (registered := num_registered()) != self._registered:
            self._registered = registered
            parts = tuple(map(id, modules_in(model)))
            self._count += self._parts is not None and parts != self._parts
            self._parts = parts
        if self._places and self._count < _MOST:
            code = [_identity(place()) for place in self._places]
            if code != self._code:
                self._code, self._count = code, self._count + 1
        return self._count


def places_in(mapping: Any, names: Iterable[str]) -> list[Callable[[], Any]]:
    """Return a function for each of `names` under which a mapping holds code, which returns what is there."""
    return [partial(mapping.get, name) for name in names if _is_code(mapping.get(name))]


def places_of(owner: Any, names: Iterable[str]) -> list[Callable[[], Any]]:
    """Return as :func:`places_in` for attributes of an object, which is not kept alive."""
    attributes = getattr(owner, "__dict__", {})
    found = [name for name in names if _is_code(attributes.get(name))]
    try:
        reference = weakref.ref(owner)
    except TypeError:
        return []
    return [partial(_attribute, reference, name) for name in found]


def _attribute(reference: weakref.ref[Any], name: str) -> Any:
    owner = reference()
    return None if owner is None else owner.__dict__.get(name)


def _is_code(value: object) -> bool:
    if isinstance(value, CONTAINERS):
        return any(_is_code(item) for item in _items(value) if not isinstance(item, CONTAINERS))
    if isinstance(value, FunctionType | partial):
        return True
    return not isinstance(value, NO_CALL) and type(value).__module__ != "builtins" and is_users_module(type(value).__module__)


def _items(value: Any) -> list[Any]:
    return list(islice(value.values() if isinstance(value, dict) else value, MOST_ITEMS))


def _identity(value: Any) -> Any:
    """Return what changes when a function, or an item of a container, is replaced; quickly, as it is asked in each call."""
    if not isinstance(value, CONTAINERS):
        return id(value)
    if len(value) > MOST_ITEMS:
        return id(value), len(value)
    return [*map(id, value.values() if isinstance(value, dict) else value)]

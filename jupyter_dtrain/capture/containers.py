"""Containers of a class of the user's, made from one of Python's: they go with their items and attributes, whatever their own methods do.

Python's own way calls the class with arguments that it makes up (``Meters(default_factory)``), which an ``__init__`` of the user's may not
take, and forgets the attributes of a ``defaultdict`` or a ``Counter``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from types import FunctionType
from typing import Any, cast

BASES: tuple[Any, ...] = (defaultdict, OrderedDict, Counter, deque, dict, list, set)


def reduced_container(obj: Any) -> Any:
    """Return how one of them, or any deque, reduces; ``NotImplemented`` for what has a way of its own or is Python's own."""
    kind: Any = type(obj)
    base = next(base for base in BASES if isinstance(obj, base))
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not base.__reduce__:
        return NotImplemented
    if kind is deque:  # with the items of this moment: a thread may change it while they are written
        return *cast("tuple[Any, ...]", obj.__reduce__())[:3], iter([*deque.__iter__(obj)])
    if kind is base:
        return NotImplemented
    if base is deque:
        made_of: Any = obj.maxlen
    else:
        made_of = obj.default_factory if base is defaultdict else None
    return _bare, (kind, base), (_items(obj, base), made_of, obj.__getstate__()), None, None, _fill


def set_attributes(obj: object, state: Any) -> None:
    """Give `obj` the attributes of a state that ``object.__getstate__`` has returned, past its own ways to set them."""
    own, slots = state if isinstance(state, tuple) else (state, None)
    if own:
        vars(obj).update(own)
    for key, value in (slots or {}).items():
        object.__setattr__(obj, key, value)


def _bare(kind: Any, base: Any) -> Any:
    made = kind.__new__
    return base.__new__(kind) if isinstance(made, FunctionType) else made(kind)  # that of a class in C refuses to be passed over


def _items(obj: Any, base: Any) -> list[Any]:
    return list(base.items(obj)) if issubclass(base, dict) else [*base.__iter__(obj)]


def _fill(obj: Any, contents: tuple[list[Any], Any, Any]) -> None:
    items, made_of, state = contents
    base = next(base for base in BASES if isinstance(obj, base))
    if base is deque:
        deque.__init__(obj, (), made_of)
    elif base is defaultdict:
        obj.default_factory = made_of
    if issubclass(base, dict):
        set_item = OrderedDict.__setitem__ if base is OrderedDict else dict.__setitem__
        for key, value in items:
            set_item(obj, key, value)
    elif base is set:
        set.update(obj, items)
    else:
        base.extend(obj, items)
    if state is not None and hasattr(type(obj), "__setstate__"):
        obj.__setstate__(state)
    else:
        set_attributes(obj, state)

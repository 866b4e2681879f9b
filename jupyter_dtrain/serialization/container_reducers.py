"""Containers of classes of the user, with what they hold and their own attributes."""

from __future__ import annotations

import os
import random
from collections import Counter, OrderedDict, defaultdict, deque
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch


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
    function, args, contents = empty_container(obj, base)
    return function, args, (contents, obj.__getstate__()), None, None, _fill


def empty_container(obj: Any, base: Any) -> tuple[Any, tuple[Any, Any], tuple[list[Any], Any]]:
    """Return what makes an empty container like `obj`, of what, and its contents for :func:`fill_container`."""
    if base is deque:
        made_of: Any = obj.maxlen
    else:
        made_of = obj.default_factory if base is defaultdict else None
    return _bare, (type(obj), base), (_items(obj, base), made_of)


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


def fill_container(obj: Any, contents: tuple[list[Any], Any]) -> None:
    """Give a container these items and no others, past its own ways to take them."""
    items, made_of = contents
    base = next(base for base in BASES if isinstance(obj, base))
    if base is deque:
        deque.__init__(obj, (), made_of)
    else:
        base.clear(obj)
        if base is defaultdict:
            obj.default_factory = made_of
    if issubclass(base, dict):
        set_item = OrderedDict.__setitem__ if base is OrderedDict else dict.__setitem__
        for key, value in items:
            set_item(obj, key, value)
    elif base is set:
        set.update(obj, items)
    else:
        base.extend(obj, items)


def _fill(obj: Any, parts: tuple[tuple[list[Any], Any], Any]) -> None:
    contents, state = parts
    fill_container(obj, contents)
    if state is not None and hasattr(type(obj), "__setstate__"):
        obj.__setstate__(state)
    else:
        set_attributes(obj, state)


def reduced_own(obj: Any) -> Any:
    """Return how `obj` reduces if it is one of these: as that of the process that reads it; else ``NotImplemented``."""
    if type(obj).__name__ not in _KINDS:  # nearly everything is asked
        return NotImplemented
    return next(((_library_function_of, (name,)) for name, own in _all().items() if obj is own), NotImplemented)


BASES: tuple[Any, ...] = (defaultdict, OrderedDict, Counter, deque, dict, list, set)


def _library_function_of(name: str) -> Any:
    return _all()[name]


def _all() -> dict[str, Any]:
    python: Any = random.random  # which is the same method in a run, as `random.seed` is not
    numpy: Any = np.random.random
    return {"random": python.__self__, "numpy.random": numpy.__self__, "torch": torch.default_generator, "os.environ": os.environ}


_KINDS = frozenset({"Random", "RandomState", "Generator", "_Environ"})

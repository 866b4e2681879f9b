"""User-defined subclasses of containers, with their items and attributes; and generators of which each process has one."""

from __future__ import annotations

import os
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Sequence
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch

from .linked_attributes import link, linked_dict


def reduced_container(obj: Any) -> Any:
    """Return the reduce value of a container subclass, or of any deque; ``NotImplemented`` for built-in or customized classes."""
    kind: Any = type(obj)
    base = next(base for base in BASES if isinstance(obj, base))
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not base.__reduce__:
        return NotImplemented
    if kind is deque:  # a copy of the items: a thread may append while they are written
        return *cast("tuple[Any, ...]", obj.__reduce__())[:3], iter([*deque.__iter__(obj)])
    if kind is base:
        return NotImplemented
    function, args, contents = empty_container(obj, base)
    own = linked_dict(obj)
    return function, args, (contents, obj.__getstate__() if own is None else None, own), None, None, _fill


def empty_container(obj: Any, base: Any) -> tuple[Any, tuple[Any, Any], tuple[list[Any], Any]]:
    """Return function and arguments that make an empty container like `obj`, and its contents for :func:`fill_container`."""
    if base is deque:
        made_of: Any = obj.maxlen
    else:
        made_of = obj.default_factory if base is defaultdict else None
    return _bare, (type(obj), base), (_items(obj, base), made_of)


def set_attributes(obj: object, state: Any) -> None:
    """Set the attributes of a state from ``object.__getstate__``, bypassing the object's own ``__setattr__``."""
    own, slots = state if isinstance(state, tuple) else (state, None)
    if own:
        vars(obj).update(own)
    for key, value in (slots or {}).items():
        object.__setattr__(obj, key, value)


def _bare(kind: Any, base: Any) -> Any:
    made = kind.__new__
    return base.__new__(kind) if isinstance(made, FunctionType) else made(kind)  # ``object.__new__`` refuses classes written in C


def _items(obj: Any, base: Any) -> list[Any]:
    return list(base.items(obj)) if issubclass(base, dict) else [*base.__iter__(obj)]


def fill_container(obj: Any, contents: tuple[list[Any], Any]) -> None:
    """Replace the items of a container, bypassing its own methods."""
    items, made_of = contents
    base = next(base for base in BASES if isinstance(obj, base))
    if base is deque:
        fill_deque(obj, items, made_of)
    elif issubclass(base, dict):
        if base is defaultdict:
            obj.default_factory = made_of
        fill_dict(obj, [key for key, _ in items], [value for _, value in items])
    else:
        base.clear(obj)
        (set.update if base is set else base.extend)(obj, items)


# A loop may be walking over the container: an `OrderedDict` or deque that is emptied and filled again ends it with an error.


def fill_dict(obj: Any, keys: Sequence[Any], values: Sequence[Any]) -> None:
    """Replace the items of a dict; if the keys stay, only the values."""
    kind = OrderedDict if isinstance(obj, OrderedDict) else dict
    if len(keys) != dict.__len__(obj) or not all(map(_is_same_key, kind.__iter__(obj), keys)):
        kind.clear(obj)
    for key, value in zip(keys, values, strict=True):
        kind.__setitem__(obj, key, value)


def _is_same_key(key: Any, other: Any) -> bool:
    return key is other or (type(key) is type(other) and type(key) in _NAMES and key == other)


_NAMES = frozenset({str, bytes, int})  # kinds of keys that can be compared without code of the user


def fill_deque(obj: Any, items: Sequence[Any], maxlen: int | None) -> None:
    """Replace the items of a deque, and the most items that it holds."""
    if len(items) != deque.__len__(obj) or deque.maxlen.__get__(obj) != maxlen:
        deque.__init__(obj, items, maxlen)
        return
    for index, (found, item) in enumerate(zip(deque.__iter__(obj), items, strict=True)):
        if found is not item:
            deque.__setitem__(obj, index, item)


def _fill(obj: Any, parts: tuple[tuple[list[Any], Any], Any, dict[str, Any] | None]) -> None:
    contents, state, own = parts
    fill_container(obj, contents)
    if own is not None:
        link(obj, own)
    elif state is not None and hasattr(type(obj), "__setstate__"):
        obj.__setstate__(state)
    else:
        set_attributes(obj, state)


def reduced_own(obj: Any) -> Any:
    """Return a reference to the reader's equivalent if `obj` is a per-process object (a global generator, the environment)."""
    if type(obj).__name__ not in _KINDS:  # fast path, as this is called for nearly every object
        return NotImplemented
    return next(((_library_function_of, (name,)) for name, own in _all().items() if obj is own), NotImplemented)


BASES: tuple[Any, ...] = (defaultdict, OrderedDict, Counter, deque, dict, list, set)


def _library_function_of(name: str) -> Any:
    return _all()[name]


def _all() -> dict[str, Any]:
    python: Any = random.random  # unlike `random.seed`, this method is not replaced during a run
    numpy: Any = np.random.random
    return {"random": python.__self__, "numpy.random": numpy.__self__, "torch": torch.default_generator, "os.environ": os.environ}


_KINDS = frozenset({"Random", "RandomState", "Generator", "_Environ"})

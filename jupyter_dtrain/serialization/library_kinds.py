"""Kinds of values in a library's settings: plain values, values that are pickled as they are, and objects that hold settings."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from .library_changes import EVERYBODYS, is_of_the_process
from .python_reducers import SlotValues, slots_of

CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)
_EXACTLY_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.Size, torch.device})
_OF_PLAIN_KINDS = (Enum, PurePath, date, time, timedelta, Decimal, Fraction, np.generic, np.dtype)
OF_EACH_PROCESS: tuple[type, ...] = (logging.Logger, type(threading.Lock()), type(threading.RLock()))
"""Types that are recreated in another process without loss."""
_LARGEST = 1 << 20  # bytes of a tensor or an array
_NAMESPACES = (SimpleNamespace, argparse.Namespace)
_OTHER_THINGS = (type, ModuleType, BaseException, nn.Module, torch.Tensor, tuple, str, bytes, int, float, frozenset, Enum)
_HOMES_OF_BASES = frozenset(
    {"abc", "typing", "typing_extensions", "collections", "collections.abc", "_collections_abc", "types", "argparse"}
)


def is_plain(kind: type) -> bool:
    """Return whether objects of `kind` are immutable plain values."""
    return kind in _EXACTLY_PLAIN or issubclass(kind, _OF_PLAIN_KINDS)


def is_sent_as_it_is(value: Any) -> bool:
    """Return whether `value` is importable by name, the notebook's own, a small tensor or array, or a logger or lock."""
    kind = type(value)
    if issubclass(kind, type | FunctionType | BuiltinFunctionType):
        module = getattr(value, "__module__", None)
        found: Any = sys.modules.get(module) if isinstance(module, str) else None
        for part in str(getattr(value, "__qualname__", "")).split("."):
            found = getattr(found, part, None)
        return found is value or module == "__main__"
    if kind is ModuleType:
        return sys.modules.get(value.__name__) is value
    if kind in (torch.Tensor, nn.Parameter):
        return value.layout is torch.strided and value.is_leaf and value.nbytes <= _LARGEST
    if kind is np.ndarray:
        return not value.dtype.hasobject and value.nbytes <= _LARGEST
    if issubclass(kind, OF_EACH_PROCESS):
        return True
    return str(kind.__module__) == "__main__"


def is_sent_home(name: str, value: Any) -> bool:
    """Return whether a value that a cell has assigned to attribute `name` of a library's object is sent home, or is the library's own."""
    kind = type(value)
    is_known = (
        is_plain(kind) or issubclass(kind, tuple | frozenset) or kind in CONTAINERS or keeps_settings(kind) or is_sent_as_it_is(value)
    )
    return not is_of_the_process(name, value) and (is_known or not name.startswith("_"))


def keeps_settings(kind: type) -> bool:
    """Return whether `kind` is a library's class written in Python whose objects hold attributes or items."""
    if kind in _NAMESPACES:
        return True
    if not kind.__flags__ & 1 << 9:  # not made by a `class` statement or the like
        return False
    known = _kinds.get(id(kind))
    if known is None or known[0]() is not kind:
        known = _kinds[id(kind)] = weakref.ref(kind), _is_of_settings(kind)
    return known[1]


_kinds: dict[int, tuple[weakref.ref[type], bool]] = {}


def _is_of_settings(kind: type) -> bool:
    home = str(kind.__module__).partition(".")[0]
    if home in EVERYBODYS or home in sys.stdlib_module_names or issubclass(kind, _OTHER_THINGS) or hasattr(kind, "__get__"):
        return False
    return all(_is_in_python(base) for base in kind.__mro__)


def _is_in_python(kind: type) -> bool:
    home = str(kind.__module__)
    if kind is object or kind in CONTAINERS or home in _HOMES_OF_BASES:
        return True
    return home.partition(".")[0] not in sys.stdlib_module_names and str(getattr(sys.modules.get(home), "__file__", "")).endswith(".py")


def lets_look(obj: Any) -> bool:
    """Return whether `obj` reveals its class; a proxy for a missing object may raise instead."""
    try:
        return obj.__class__ is not None
    except Exception:
        return False


def attributes_in(obj: Any) -> dict[str, Any]:
    """Return the dict and slot values of `obj`, bypassing its own attribute lookup."""
    own: Any = None
    with suppress(AttributeError):
        own = object.__getattribute__(obj, "__dict__")
    found = dict(own) if type(own) is dict else {}
    return {**found, **SlotValues(obj)} if slots_of(type(obj)) else found


def name_of(kind: type) -> str:
    """Return the qualified name of a class with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"

"""Attributes that are left to an object's class when it is pickled, as no other process can have them: handles, addresses, generators.

They are recognized by their types, by what the class's code calls, or after pickling them has failed.
"""

from __future__ import annotations

import io
import mmap
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from ..analysis.code_objects import installed_folders, names_in
from .cached_functions import release_caches
from .python_reducers import SlotValues, slots_of

_NOT_THE_USERS = (str(Path(__file__).parents[1]), "<frozen")
_OF_THE_PROCESS = (io.TextIOWrapper, io.BufferedIOBase, io.RawIOBase, np.memmap, mmap.mmap)
_NUMBERS = frozenset((type(None), bool, int, float, complex, str, bytes, np.ndarray, torch.Tensor))
_MODULES_OWN = "_compiled_call_impl"  # result of `Module.compile()`, which PyTorch itself leaves out
_HANDLES = frozenset(("ctypes", "cffi", "fileno", "memfd_create", "eventfd", "pipe"))  # users of these may keep a handle as an int
_ADDRESSES = range(1 << 40, 1 << 47)
_LONGEST = 10.0  # seconds to search for what cannot be pickled

_met: WeakValueDictionary[int, Any] = WeakValueDictionary()  # objects that were written by attributes, by id
_held: dict[int, Any] = {}  # those that cannot be weakly referenced, kept until all is written
_stay: dict[int, tuple[Callable[[], Any], dict[str, type]]] = {}  # by id: a reference, and types of unpicklable attributes
as_classes_say: ContextVar[bool] = ContextVar("as_classes_say", default=False)


def to_stay(obj: Any, held: Mapping[str, Any]) -> set[str]:
    """Return the attributes that may be meaningless in another process, for which the class's own way is used."""
    stay = {name for name, value in held.items() if isinstance(value, _OF_THE_PROCESS) and not isinstance(value, io.BytesIO)}
    stay |= _known_to_stay(obj, held)
    numbers = {name for name, value in held.items() if type(value) is int}
    if numbers:
        stay |= numbers if _uses_handles(type(obj)) else {name for name in numbers if held[name] in _ADDRESSES}
    try:
        _met[id(obj)] = obj
    except TypeError:
        _held[id(obj)] = obj
    return stay


def _known_to_stay(obj: Any, held: Mapping[str, Any]) -> set[str]:
    found = _stay.get(id(obj))
    if found is None or found[0]() is not obj:
        return set()
    return {name for name, kind in found[1].items() if name in held and type(held[name]) is kind}


def _uses_handles(kind: type) -> bool:
    functions = (value for base in kind.__mro__ for value in vars(base).values() if isinstance(value, FunctionType))
    words = (names_in(function.__code__) for function in functions if is_users(function.__code__.co_filename))
    return any(not _HANDLES.isdisjoint(names) or any(name.startswith("O_") for name in names) for names in words)


def is_plain_data(value: Any) -> bool:
    """Return whether `value` consists of numbers, texts, and built-in containers of these."""
    todo = [value]
    for part in todo:
        if type(part) in (list, tuple, set, frozenset, deque):
            todo.extend(part)
        elif type(part) is dict:
            todo.extend((*part.keys(), *part.values()))
        elif type(part) not in _NUMBERS:
            return False
        if len(todo) > 1000:  # also stops at containers that contain themselves
            return False
    return True


def leave_to_classes(cannot_be_written: Callable[[Any], bool]) -> bool:
    """Find attributes that cannot be pickled, and leave them to the classes; return whether there is a new one.

    If thousands of objects refer to each other, each trial takes as long as pickling all; the search then stops after `_LONGEST`.
    """
    is_new, end = False, time.monotonic() + _LONGEST
    for obj in (*_met.values(), *_held.values()):
        if time.monotonic() > end:
            return False
        own, slots = attributes_of(obj) or ({}, {})
        for name, value in {**own, **slots}.items():
            if is_plain_data(value) or name in _known_to_stay(obj, {name: value}) or not cannot_be_written(value):
                continue
            with _reducing_by_class():
                cannot = cannot_be_written(value)
            if cannot:
                _stay.setdefault(id(obj), (_reference_to(obj), {}))[1][name] = type(value)
                is_new = True
    return is_new


def release_written() -> None:
    """Release all objects, once everything is written or has failed."""
    for key in _held:
        _stay.pop(key, None)
    _held.clear()
    release_caches()


def _reference_to(obj: Any) -> Callable[[], Any]:
    key = id(obj)
    return (lambda: obj) if key in _held else weakref.ref(obj, lambda _: _stay.pop(key, None))


@contextmanager
def _reducing_by_class() -> Iterator[None]:
    token = as_classes_say.set(True)
    try:
        yield
    finally:
        as_classes_say.reset(token)


def is_users(filename: str) -> bool:
    """Return whether a source file is the user's."""
    return not filename.startswith((*installed_folders(), *_NOT_THE_USERS)) and "site-packages" not in filename


def attributes_of(obj: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the dict and the slots of `obj`, ``None`` if its ``__dict__`` is no plain dict."""
    own = getattr(obj, "__dict__", None)
    if own is not None and type(own) is not dict:
        return None
    slots = SlotValues(obj) if slots_of(type(obj)) else {}
    return {name: value for name, value in (own or {}).items() if name != _MODULES_OWN}, dict(slots)

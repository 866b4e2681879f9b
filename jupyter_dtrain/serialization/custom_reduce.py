"""Objects of a class of the user's that says itself how they are pickled: written as they are.

A ``__getstate__`` leaves out what another process could do without (a cache, a counter, a history), and a ``__setstate__`` or a
``__reduce__`` begins it anew. A cell is to find all of it on an engine, and the notebook what the cell has made of it. So the attributes
are what is written. Those that cannot be (a connection, a generator, a thread) stay as the class wants them: then its own way is taken,
and the other attributes go beside.
"""

from __future__ import annotations

import copyreg
import io
import mmap
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.optim import Optimizer

from ..analysis.code_objects import installed_folders, names_in
from .archives import go_back_to_archives
from .container_reducers import BASES, empty_container, fill_container, set_attributes
from .python_reducers import SlotValues, bare, is_of_python, slots_of, wants_arguments

_WAYS = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")
_NOT_THE_USERS = (str(Path(__file__).parents[1]), "<frozen")
_OF_THE_PROCESS = (io.TextIOWrapper, io.BufferedIOBase, io.RawIOBase, np.memmap, mmap.mmap)
_NUMBERS = frozenset((type(None), bool, int, float, complex, str, bytes, np.ndarray, torch.Tensor))
_MODULES_OWN = "_compiled_call_impl"  # what `Module.compile()` has made, which PyTorch leaves out for all modules
_HANDLES = frozenset(("ctypes", "cffi", "fileno", "memfd_create", "eventfd", "pipe"))  # who uses one may keep a handle as a plain number
_ADDRESSES = range(1 << 40, 1 << 47)

_met: WeakValueDictionary[int, Any] = WeakValueDictionary()  # objects that were written so, by their ids
_held: dict[int, Any] = {}  # those of them to which no weak reference is possible, until all is written
_stay: dict[int, tuple[Callable[[], Any], dict[str, type]]] = {}  # attributes of some that cannot be written, and what these were
_as_classes_say: ContextVar[bool] = ContextVar("_as_classes_say", default=False)


def reduced_as_it_is(obj: Any, without: frozenset[str] = frozenset()) -> Any:
    """Return how an object reduces whose class is the user's in how it is pickled, ``NotImplemented`` for all others.

    Parameters
    ----------
    without : frozenset of str
        Attributes that mean nothing in another process. They are ``None`` there, those of an optimizer are not there.
    """
    kind: Any = type(obj)
    if _as_classes_say.get() or not reduces_by_users_code(kind) or isinstance(obj, type | FunctionType | MethodType | ModuleType):
        return NotImplemented
    found, base = _attributes(obj), next((base for base in BASES if isinstance(obj, base)), None)
    if found is None or not (any(found) or (base is not None and len(obj))):
        return NotImplemented
    own, slots = ({name: value for name, value in part.items() if name not in without} for part in found)
    if not isinstance(obj, Optimizer):
        own.update(dict.fromkeys(without))
    held = {**own, **slots}
    stay = _to_stay(obj, held)
    if stay or not (base is not None or is_of_python(kind)):
        return _reduced_by_class(obj, {name: value for name, value in held.items() if name not in stay}, bool(stay), without)
    if base is not None:
        function, args, contents = empty_container(obj, base)
        return function, args, (contents, (own, slots)), None, None, _fill
    return bare, (kind,), (own, slots) if slots else own, None, None, set_attributes


def reduces_by_users_code(kind: Any) -> bool:
    """Return whether it is the user's code that says how objects of `kind` are pickled."""
    ways = (*(getattr(kind, name, None) for name in _WAYS), copyreg.dispatch_table.get(kind))
    return any(isinstance(way, FunctionType) and _is_users(way.__code__.co_filename) for way in ways)


def reduced_by_own_class(obj: Any) -> Any:
    """Return how the class of `obj` says that it is pickled, which may take something away from it: it keeps that."""
    own: Any = getattr(obj, "__dict__", None)
    before = dict(own) if type(own) is dict else own
    way = copyreg.dispatch_table.get(type(obj))
    try:
        return obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if way is None else way(obj)
    finally:
        if type(own) is dict and not (own.keys() == before.keys() and all(own[key] is value for key, value in before.items())):
            own.clear()
            own.update(before)


def go_back(cannot_be_written: Callable[[Any], bool]) -> bool:
    """Let objects be written as their classes say where they cannot be written as they are.

    Returns whether there is something that was not known before.
    """
    return leave_to_classes(cannot_be_written) or go_back_to_archives(cannot_be_written)


def leave_to_classes(cannot_be_written: Callable[[Any], bool]) -> bool:
    """Leave to their classes what cannot be written of objects; return whether there is something that was not known before."""
    is_new = False
    for obj in (*_met.values(), *_held.values()):
        own, slots = _attributes(obj) or ({}, {})
        for name, value in {**own, **slots}.items():
            if _is_plain(value) or name in _known_to_stay(obj, {name: value}) or not cannot_be_written(value):
                continue
            with _reducing_by_class():
                cannot = cannot_be_written(value)
            if cannot:
                _stay.setdefault(id(obj), (_reference_to(obj), {}))[1][name] = type(value)
                is_new = True
    return is_new


def release_written() -> None:
    """Hold no object any longer: everything is written, or what cannot be is known."""
    for key in _held:
        _stay.pop(key, None)
    _held.clear()


def _reference_to(obj: Any) -> Callable[[], Any]:
    key = id(obj)
    return (lambda: obj) if key in _held else weakref.ref(obj, lambda _: _stay.pop(key, None))


@contextmanager
def _reducing_by_class() -> Iterator[None]:
    token = _as_classes_say.set(True)
    try:
        yield
    finally:
        _as_classes_say.reset(token)


def _is_users(filename: str) -> bool:
    return not filename.startswith((*installed_folders(), *_NOT_THE_USERS)) and "site-packages" not in filename


def _attributes(obj: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return what `obj` holds in its dict and in its slots, ``None`` where that is no plain dict."""
    own = getattr(obj, "__dict__", None)
    if own is not None and type(own) is not dict:
        return None
    slots = SlotValues(obj) if slots_of(type(obj)) else {}
    return {name: value for name, value in (own or {}).items() if name != _MODULES_OWN}, dict(slots)


def _to_stay(obj: Any, held: Mapping[str, Any]) -> set[str]:
    """Return the attributes that may be nothing to another process: its class is asked for them."""
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
    words = (names_in(function.__code__) for function in functions if _is_users(function.__code__.co_filename))
    return any(not _HANDLES.isdisjoint(names) or any(name.startswith("O_") for name in names) for names in words)


def _is_plain(value: Any) -> bool:
    """Return whether `value` is numbers, texts, or Python's own containers of these."""
    todo = [value]
    for part in todo:
        if type(part) in (list, tuple, set, frozenset, deque):
            todo.extend(part)
        elif type(part) is dict:
            todo.extend((*part.keys(), *part.values()))
        elif type(part) not in _NUMBERS:
            return False
        if len(todo) > 1000:  # which may also be one that holds itself
            return False
    return True


# -- by the class's own way, and what else there is ------------------------------------------------------------------------


def _reduced_by_class(obj: Any, beside: dict[str, Any], is_incomplete: bool, without: frozenset[str]) -> Any:
    found = reduced_by_own_class(obj)
    if isinstance(found, str):  # the name of a global
        return NotImplemented
    function, args, state, items, pairs, setter = (*found, *[None] * 6)[:6]
    if function is copyreg.__newobj__ and wants_arguments(type(obj)):  # type: ignore[attr-defined]
        function, args = bare, (type(obj),)
    if type(state) is dict and without:
        state = {name: value for name, value in state.items() if name not in without}
    said = _state_dict_of(state)
    if said is not None:
        # Where something stays with its class, a yes or no may be about just that: whether it is open.
        beside = {
            name: value
            for name, value in beside.items()
            if said.get(name, _is_plain) is not value and not (is_incomplete and type(value) is bool)
        }
    contents = None
    if (base := next((base for base in BASES if isinstance(obj, base)), None)) is not None:
        contents = empty_container(obj, base)[2]
    return function, args, (setter, state, contents, beside), items, pairs, _restore_with_rest


def _state_dict_of(state: Any) -> dict[str, Any] | None:
    """Return the attributes that a state names, ``None`` where nobody can tell."""
    if type(state) is tuple and len(state) == 2 and all(part is None or type(part) is dict for part in state):
        return {**(state[0] or {}), **(state[1] or {})}
    return state if type(state) is dict else None


def _restore_with_rest(obj: Any, parts: tuple[Any, Any, Any, dict[str, Any]]) -> None:
    setter, state, contents, beside = parts
    if state is not None:
        if setter is not None:
            setter(obj, state)
        elif hasattr(type(obj), "__setstate__"):
            obj.__setstate__(state)
        else:
            set_attributes(obj, state)
    if contents is not None:
        fill_container(obj, contents)
    _set(obj, beside)


def _fill(obj: Any, parts: tuple[Any, tuple[dict[str, Any], dict[str, Any]]]) -> None:
    fill_container(obj, parts[0])
    set_attributes(obj, parts[1])


def _set(obj: Any, attributes: dict[str, Any]) -> None:
    """Give `obj` attributes, past its own ways to set them."""
    slots = slots_of(type(obj))
    set_attributes(obj, ({k: v for k, v in attributes.items() if k not in slots}, {k: v for k, v in attributes.items() if k in slots}))


def leaves_out(obj: Any, name: str) -> bool | None:
    """Return whether the class of `obj` leaves attribute `name` to itself, ``None`` where the class is not the user's in that."""
    if not reduces_by_users_code(type(obj)):
        return None
    found = reduced_by_own_class(obj)
    said = _state_dict_of(found[2]) if not isinstance(found, str) and len(found) > 2 else None
    return said is None or said.get(name, _is_plain) is not (_attributes(obj) or ({}, {}))[0].get(name)

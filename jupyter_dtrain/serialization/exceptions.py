"""Exceptions with what they have besides attributes: `args`, the exceptions before them, and fields of C such as `filename`.

A traceback stays where it was, as its frames mean nothing in another process.
"""

from __future__ import annotations

import copyreg
import pickle
from contextlib import suppress
from inspect import ismemberdescriptor
from types import FunctionType
from typing import Any

from .custom_reduce import reduced_as_it_is

_OF_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_CHAIN = ("__cause__", "__context__", "__suppress_context__")  # in this order: to set a cause suppresses the context
_LEFT = frozenset({"obj"})  # of an AttributeError: any object whatever, which Python does not pickle with it either


def _names_of(kind: type) -> list[str]:
    """Return the names of what exceptions of `kind` have besides attributes, also of read-only fields."""
    bases = (base for base in kind.__mro__ if not base.__flags__ & _OF_PYTHON)
    fields = (name for base in bases for name, field in vars(base).items() if ismemberdescriptor(field))
    return ["args", *_CHAIN, *(name for name in fields if name not in _CHAIN and name not in _LEFT)]


def contents_of_exception(error: BaseException) -> list[Any]:
    """Return what an exception holds besides its attributes."""
    return [getattr(error, name) for name in _names_of(type(error))]


def refill_exception(error: BaseException, contents: list[Any]) -> None:
    """Set what :func:`contents_of_exception` has returned."""
    _set(error, dict(zip(_names_of(type(error)), contents, strict=True)))


def _set(error: BaseException, contents: dict[str, Any]) -> None:
    for name, value in contents.items():
        if getattr(error, name) is not value:  # one that was not set reads as `None`
            with suppress(AttributeError, TypeError):  # read-only: `exceptions` of a group
                setattr(error, name, value)


def reduced_exception(obj: Any) -> Any:
    """Return the reduce value of an exception, with what its class does not pickle."""
    if not isinstance(obj, BaseException):
        return NotImplemented
    kind: Any = type(obj)
    is_pythons = kind.__reduce_ex__ is object.__reduce_ex__ and not isinstance(kind.__reduce__, FunctionType)
    if is_pythons and kind.__reduce__ is BaseException.__reduce__ and isinstance(kind.__init__, FunctionType):
        # Its ``__init__`` may take other arguments than ``args``, which pickle would pass.
        found: Any = (made_exception, (kind, obj.args), vars(obj) or None)
    elif (found := reduced_as_it_is(obj)) is NotImplemented:
        way = copyreg.dispatch_table.get(kind)
        if way is None or str(way.__module__).startswith("tblib"):  # which Dask has registered, and which adds the traceback
            found = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        else:
            found = way(obj)
    if isinstance(found, str):
        return found
    names = _names_of(kind) if is_pythons else _CHAIN  # what the class itself leaves out may not be sendable
    function, args, state, items, pairs, setter = (*found, *[None] * 6)[:6]
    return function, args, (setter, state, {name: getattr(obj, name) for name in names}), items, pairs, _set_state


def _set_state(error: Any, parts: tuple[Any, Any, dict[str, Any]]) -> None:
    setter, state, contents = parts
    if state is not None:
        error.__setstate__(state) if setter is None else setter(error, state)
    _set(error, contents)


def made_exception(kind: Any, args: tuple[Any, ...]) -> Any:
    """Return an exception of `kind` with these `args`, without calling its own ``__init__``."""
    base = next(base for base in kind.__mro__ if not base.__flags__ & _OF_PYTHON)
    made = base.__new__(kind, *args)
    base.__init__(made, *args)
    return made

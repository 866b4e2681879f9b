"""Iterators of Python's own: where they stand, and how one of the notebook comes to stand where its copy on an engine has come to.

They hold their place where Python cannot write it, so each kind has a way of its own: an index that is set, numbers or entries that are
taken until it is there, or pickle's ``__setstate__``. None of these runs anybody's code. Of what is left (`islice`, `tee`) a new one is
made, which takes the old one's place in all that refers to it.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CoroutineType, GeneratorType
from typing import Any


class _Items:
    def __getitem__(self, index: int) -> Any:
        raise IndexError(index)


_EMPTY: dict[Any, Any] = {}
_SEQUENCES: tuple[Any, ...] = ([], (), "", "é", b"", bytearray(), _Items())
_OTHERS: tuple[Any, ...] = (range(0), range(2**70), set(), _EMPTY.keys(), _EMPTY.values(), _EMPTY.items())
_INDEXED = frozenset((type(reversed([])), type(reversed(())), *(type(iter(empty)) for empty in _SEQUENCES)))
_COUNTED = frozenset((itertools.repeat, *(type(iter(empty)) for empty in _OTHERS)))
_OF_OTHERS = frozenset((zip, map, filter, itertools.starmap, itertools.filterfalse, itertools.compress, itertools.zip_longest))
_PLAIN = (int, float, complex, str, bytes, type(None))
_MODULES = frozenset(("builtins", "itertools"))


@dataclass(frozen=True)
class Standing:
    """Where an iterator stands.

    Attributes
    ----------
    place : object
        What tells it from other places.
    parts : tuple
        What such an iterator is made of, as pickle has it.
    inner : list of (iterator, Standing)
        Of the iterators in there: those that are read before the lists that they walk over are as they should be stand at their beginnings.
    """

    place: Any
    parts: tuple[Any, ...]
    inner: list[tuple[Any, Standing]]


def is_iterator(obj: object) -> bool:
    """Return whether `obj` is an iterator of Python's own, and no generator."""
    kind = type(obj)
    return kind.__module__ in _MODULES and hasattr(kind, "__next__") and not isinstance(obj, GeneratorType | CoroutineType)


def standing_of(iterator: Any) -> Standing | None:
    """Return where `iterator` stands; ``None`` for one that cannot be sent, or stands where those stand that it is made of."""
    parts = _parts(iterator)
    if parts is None or type(iterator) in _OF_OTHERS:
        return None
    args, *state = parts[1:]
    around = (*args, *(state[0] if state and isinstance(state[0], tuple) else ()))
    inner = [(part, standing) for part in around if is_iterator(part) and (standing := standing_of(part)) is not None]
    return Standing(place_of(iterator), parts, inner)


def place_of(iterator: Any) -> Any:
    """Return what is another where `iterator` stands elsewhere."""
    kind = type(iterator)
    if kind in _COUNTED:
        return _remaining(iterator)
    if kind is itertools.count:
        return repr(iterator)
    parts = _parts(iterator)
    if parts is None:
        return None
    args, *state = parts[1:]
    return tuple(map(_of_argument, args)), *map(_of_state, state)


def _of_argument(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    return (type(value).__name__, place_of(value)) if is_iterator(value) else type(value).__name__


def _of_state(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_of_state, value))
    if isinstance(value, list):  # what `cycle` has put by
        return len(value)
    return _of_argument(value) if isinstance(value, _PLAIN) or is_iterator(value) else id(value)  # in another process another one


def _remaining(iterator: Any) -> int:
    try:
        return operator.length_hint(iterator, -1)
    except TypeError:  # it has no end
        return -1


def _parts(iterator: Any) -> tuple[Any, ...] | None:
    try:
        with _no_warnings():
            found: tuple[Any, ...] = iterator.__reduce__()
    except TypeError:  # it has no such thing
        return None
    return found


# -- to let them stand elsewhere -----------------------------------------------------------------------------------------


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Keep quiet about the pickling of `itertools`, which Python gives up from 3.12 on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield

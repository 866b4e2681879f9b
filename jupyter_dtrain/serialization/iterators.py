"""Built-in iterators: their positions, as state that can be pickled and compared.

Python code cannot write an iterator's position directly. Each kind has its own way: set an index, take items until the position is
reached, or use pickle's ``__setstate__``. None of these runs user code. The rest (`islice`, `tee`) is replaced by a new iterator in
everything that refers to the old one (:mod:`.iterator_moves`).
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass
from types import CoroutineType, GeneratorType
from typing import Any

from .itertools_parts import parts_of


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
    """The position of an iterator.

    Attributes
    ----------
    place : object
        A value that differs between positions.
    parts : tuple
        The iterator's reduce value.
    inner : list of (iterator, Standing)
        Positions of the iterators inside. Needed if these are unpickled before the contents of what they iterate over are restored.
    """

    place: Any
    parts: tuple[Any, ...]
    inner: list[tuple[Any, Standing]]


def is_iterator(obj: object) -> bool:
    """Return whether `obj` is a built-in iterator, but no generator."""
    kind = type(obj)
    return kind.__module__ in _MODULES and hasattr(kind, "__next__") and not isinstance(obj, GeneratorType | CoroutineType)


def standing_of(iterator: Any) -> Standing | None:
    """Return the position of `iterator`; ``None`` if it cannot be pickled or its inner iterators determine it."""
    parts = parts_of(iterator)
    if parts is None or type(iterator) in _OF_OTHERS:
        return None
    args, *state = parts[1:]
    around = (*args, *(state[0] if state and isinstance(state[0], tuple) else ()))
    inner = [(part, standing) for part in around if is_iterator(part) and (standing := standing_of(part)) is not None]
    return Standing(place_of(iterator), parts, inner)


def place_of(iterator: Any) -> Any:
    """Return a value that differs between positions of `iterator`."""
    kind = type(iterator)
    if kind in _COUNTED:
        return _remaining(iterator)
    if kind is itertools.count:
        return repr(iterator)
    parts = parts_of(iterator)
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
    if isinstance(value, list):  # the saved items of `cycle`
        return len(value)
    return _of_argument(value) if isinstance(value, _PLAIN) or is_iterator(value) else id(value)  # by identity


def _remaining(iterator: Any) -> int:
    try:
        return operator.length_hint(iterator, -1)
    except TypeError:  # it is infinite
        return -1

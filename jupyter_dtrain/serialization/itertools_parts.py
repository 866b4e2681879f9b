"""What `itertools` objects are made of, and where they stand, as a reduce value.

Python 3.14 no longer pickles them. Their parts are what the garbage collector visits; a count and the times of a `repeat` can be asked for.
Nobody tells the position of others (`islice`, `accumulate`), so these stay where they are, as does a `cycle` in its first round.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PICKLED = sys.version_info < (3, 14)
"""Whether Python pickles them itself."""


def parts_of(iterator: Any) -> tuple[Any, ...] | None:
    """Return the reduce value of a built-in iterator; ``None`` if it has none. Runs no user code."""
    try:
        with no_warnings():
            found: tuple[Any, ...] = iterator.__reduce__()
    except TypeError:  # not reducible
        way = None if PICKLED else _WAYS.get(type(iterator))
        return None if way is None else way(iterator, gc.get_referents(iterator)[1:])  # the first is its type
    return found


@contextmanager
def no_warnings() -> Iterator[None]:
    """Suppress the deprecation (since Python 3.12) of pickling `itertools`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def reduced_itertools(obj: Any) -> Any:
    """Return the reduce value of an `itertools` object that Python does not pickle, or ``NotImplemented``."""
    if PICKLED or type(obj) not in _WAYS:
        return NotImplemented
    return NotImplemented if (found := parts_of(obj)) is None else found


def first_round_of(obj: Any) -> Any:
    """Return the iterator of a cycle that has begun with it and is not through; ``None``: Python pickles it, or it is no such cycle."""
    found = None if PICKLED or type(obj) is not itertools.cycle else parts_of(obj)
    return found[1][1] if found is not None and found[0] is beginning else None


def repeating(items: list[Any], place: int) -> Any:
    """Return a cycle that has returned all `items`, and goes on with the one at `place`."""
    return behind(itertools.cycle(items), len(items) + place)


def beginning(items: list[Any], rest: Iterator[Any], number: int) -> Any:
    """Return a cycle that has returned the `number` of `items`. It returns those of `rest` before it begins again."""
    return behind(itertools.cycle(itertools.chain(items, rest)), number)


def chained(source: Iterator[Any], *active: Iterator[Any]) -> itertools.chain[Any]:
    """Return a chain of what `source` returns, within the `active` iterator, if any."""
    rest = itertools.chain.from_iterable(source)
    return itertools.chain(*active, rest) if active else rest


def behind(iterator: Any, number: int | None) -> Any:
    """Take so many items of `iterator`, ``None``: all, and return it."""
    deque(itertools.islice(iterator, number), maxlen=0)
    return iterator


def _count(iterator: Any, inside: list[Any]) -> tuple[Any, ...]:
    if len(inside) > 1:
        return itertools.count, tuple(inside)
    return itertools.count, (int(repr(iterator)[len("count(") : -1]),)  # whole numbers in steps of 1 are no objects yet


def _repeat(iterator: Any, inside: list[Any]) -> tuple[Any, ...]:
    try:
        return itertools.repeat, (inside[0], operator.length_hint(iterator))
    except TypeError:  # it is infinite
        return itertools.repeat, (inside[0],)


def _cycle(iterator: Any, inside: list[Any]) -> tuple[Any, ...]:
    items = inside[-1]
    if len(inside) > 1 and not items:
        return itertools.cycle, (inside[0],)
    if len(inside) > 1:
        return beginning, (list(items), inside[0], len(items))
    around = list(itertools.islice(iterator, len(items)))  # it stands there again then, and that says where
    places = (place for place in range(len(items)) if all(map(operator.is_, around, (*items[place:], *items[:place]))))
    return repeating, (list(items), next(places, 0))


def _chain(_: Any, inside: list[Any]) -> tuple[Any, ...]:
    return chained, tuple(inside) or (iter(()),)


def _function_last(iterator: Any, inside: list[Any]) -> tuple[Any, ...]:
    return type(iterator), (inside[1], inside[0])


def _in_order(iterator: Any, inside: list[Any]) -> tuple[Any, ...]:
    return type(iterator), tuple(inside)


_WAYS: dict[type, Callable[[Any, list[Any]], tuple[Any, ...]]] = {
    itertools.count: _count,
    itertools.repeat: _repeat,
    itertools.cycle: _cycle,
    itertools.chain: _chain,
    itertools.starmap: _function_last,
    itertools.filterfalse: _function_last,
    itertools.compress: _in_order,
}

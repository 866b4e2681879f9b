"""Move iterators of the notebook to the positions that their copies on an engine have reached."""

from __future__ import annotations

import gc
import itertools
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from types import CellType
from typing import Any

from .iterators import _COUNTED, _INDEXED, Standing, _remaining, is_iterator, place_of
from .itertools_parts import PICKLED, behind, no_warnings, parts_of, repeating
from .python_reducers import attribute_holders


class CannotPlace(Exception):
    """An iterator of the notebook cannot be moved to its copy's position."""


def put_in_place(iterators: Sequence[Any], standings: Sequence[Standing]) -> None:
    """Move iterators to their copies' positions, after the contents of the objects that they iterate over were restored.

    Raises
    ------
    CannotPlace
        An iterator must be replaced by a new one, but an immutable object refers to it. All others are moved.
    """
    _move(_take_with_count, iterators, standings)  # before the iterators inside
    inner = [pair for standing in standings for pair in standing.inner]
    if inner:
        put_in_place([iterator for iterator, _ in inner], [standing for _, standing in inner])
    _move(_move_by_itself, iterators, standings)
    _move(_move_behind_its_parts, iterators, standings)
    left = [index for index, to in enumerate(standings) if not _stands(iterators[index], to)]
    if left:
        olds = [iterators[index] for index in left]
        _replace(olds, _made_anew(olds, [standings[index] for index in left]))


def _stands(iterator: Any, to: Standing) -> bool:
    if type(iterator) in _COUNTED:  # a dict iterator's copy iterates over a list
        return _remaining(iterator) == _remaining(_made(to.parts))
    return bool(place_of(iterator) == to.place)


def _made(parts: tuple[Any, ...]) -> Any:
    function, args, *state = parts
    iterator = function(*args)
    if state and state[0] is not None:
        iterator.__setstate__(state[0])
    return iterator


def _move(way: Callable[[Any, Standing], None], iterators: Sequence[Any], standings: Sequence[Standing]) -> None:
    for iterator, to in zip(iterators, standings, strict=True):
        # Errors (a dict of another size, another kind of numbers) are ignored here: the caller checks the position afterwards.
        with suppress(TypeError, ValueError, RuntimeError, OverflowError, AttributeError), no_warnings():
            if not _stands(iterator, to):
                way(iterator, to)


def _take_with_count(iterator: Any, to: Standing) -> None:
    """Advance an `enumerate` together with its inner iterator, if that runs no user code."""
    parts = parts_of(iterator)
    if type(iterator) is enumerate and parts is not None and type(parts[1][0]) in (*_INDEXED, *_COUNTED, itertools.count):
        behind(iterator, max(0, to.parts[1][1] - parts[1][1]))


def _move_by_itself(iterator: Any, to: Standing) -> None:
    """Move an iterator that contains no other iterators."""
    kind = type(iterator)
    if kind in _INDEXED:
        if len(to.parts) > 2:
            iterator.__setstate__(to.parts[2])
        else:
            behind(iterator, None)
    elif kind in _COUNTED:
        behind(iterator, max(0, _remaining(iterator) - _remaining(_made(to.parts))))
    elif kind is itertools.count:
        now, then = (parts[1] for parts in (parts_of(iterator) or to.parts, to.parts))
        behind(iterator, max(0, round((then[0] - now[0]) / (then[1] if len(then) > 1 else 1))))


def _move_behind_its_parts(iterator: Any, to: Standing) -> None:
    """Move an iterator whose inner iterators are in place."""
    kind = type(iterator)
    if kind in _INDEXED or kind in (enumerate, itertools.islice):
        return
    if kind is itertools.cycle and not PICKLED:
        now = parts_of(iterator) or to.parts
        if now[0] is to.parts[0] is repeating:
            (items, place), (_, then) = now[1], to.parts[1]
            behind(iterator, (then - place) % max(len(items), 1))
        return
    if kind is itertools.cycle:
        inner = to.parts[1][0]
        if to.parts[2][1]:  # it is repeating its saved items
            iterator.__setstate__((to.parts[2][0], True))
            behind(iterator, inner.__reduce__()[2] or len(to.parts[2][0]))
        return
    if len(to.parts) > 2:
        iterator.__setstate__(to.parts[2])


def _made_anew(olds: list[Any], standings: list[Standing]) -> list[Any]:
    """Return new iterators for `olds`, built from each other where these contain each other."""
    made: dict[int, Any] = {}
    wanted = {id(old): to.parts for old, to in zip(olds, standings, strict=True)}

    def new(part: Any) -> Any:
        if id(part) not in wanted:
            return tuple(map(new, part)) if type(part) is tuple else part
        if id(part) not in made:
            made[id(part)] = _made(tuple(map(new, wanted[id(part)])))
        return made[id(part)]

    with no_warnings():
        return list(map(new, olds))


def _replace(olds: list[Any], news: list[Any]) -> None:
    """Replace all references to `olds` by references to `news`."""
    by = {id(old): new for old, new in zip(olds, news, strict=True)}
    stuck = ""
    for holder in gc.get_referrers(*olds):
        if holder is olds:
            continue
        if isinstance(holder, list | deque):
            for index, value in enumerate(holder):
                if id(value) in by:
                    holder[index] = by[id(value)]
        elif isinstance(holder, dict):
            _refill(holder, by)
        elif isinstance(holder, CellType):
            holder.cell_contents = by[id(holder.cell_contents)]
        elif isinstance(holder, tuple | frozenset | set) or (is_iterator(holder) and id(holder) not in by):
            stuck = f"a {type(holder).__name__} holds it"
        else:
            for attributes in attribute_holders(holder):
                _refill(attributes, by)
    if stuck:
        kinds = ", ".join(sorted({type(old).__name__ for old in olds}))
        raise CannotPlace(f"where it stands ({kinds}) cannot be set, and {stuck}")


def _refill(holder: MutableMapping[Any, Any], by: dict[int, Any]) -> None:
    for key, value in list(holder.items()):
        if id(value) in by:
            holder[key] = by[id(value)]

"""Move iterators of the notebook to the positions that their copies on an engine have reached."""

from __future__ import annotations

import gc
import itertools
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from types import CellType
from typing import Any

from .iterators import _COUNTED, _INDEXED, Standing, _Items, _remaining, is_iterator, place_of
from .itertools_parts import PICKLED, behind, no_warnings, parts_of, repeating
from .python_reducers import attribute_holders


class CannotPlace(Exception):
    """Iterators of the notebook cannot be moved to their copies' positions.

    Attributes
    ----------
    why : list of (list of iterators, str)
        Iterators that contain each other, the outermost first, and what holds one of them.
    """

    def __init__(self, why: list[tuple[list[Any], str]]) -> None:
        super().__init__("; ".join(reason for _, reason in why))
        self.why = why


def put_in_place(iterators: Sequence[Any], standings: Sequence[Standing]) -> None:
    """Move iterators to their copies' positions, after the contents of the objects that they iterate over were restored.

    Raises
    ------
    CannotPlace
        An iterator must be replaced by a new one, but an immutable object refers to it. All others are moved.
    """
    olds, tos = _outermost_first(iterators, standings)
    _move(_take_items, olds, tos)
    _move(_move_by_itself, olds[::-1], tos[::-1])
    _move(_move_behind_its_parts, olds[::-1], tos[::-1])
    left = [index for index, to in enumerate(tos) if not _stands(olds[index], to)]
    ours = {id(olds), *_tuples_in(tos)}
    stuck = []
    for group in _connected(left, olds, tos):
        members, where = [olds[index] for index in group], [tos[index] for index in group]
        holders = [holder for holder in gc.get_referrers(*members) if id(holder) not in ours and holder is not members]
        if why := _why_stuck(holders, members):
            stuck.append((members, f"where it stands cannot be set, and {why}"))
        else:
            _replace(holders, members, _made_anew(members, where))
    if stuck:
        raise CannotPlace(stuck)


def _outermost_first(iterators: Sequence[Any], standings: Sequence[Standing]) -> tuple[list[Any], list[Standing]]:
    """Return the iterators and those inside, each once and before those that it contains."""
    found: dict[int, tuple[Any, Standing]] = {}
    for pair in zip(iterators, standings, strict=True):
        _add(found, *pair)
    return [iterator for iterator, _ in found.values()][::-1], [to for _, to in found.values()][::-1]


def _add(found: dict[int, tuple[Any, Standing]], iterator: Any, to: Standing) -> None:
    if id(iterator) not in found:
        for pair in to.inner:
            _add(found, *pair)
        found[id(iterator)] = iterator, to


def _tuples_in(standings: Sequence[Standing]) -> set[int]:
    """Return the ids of the tuples by which standings refer to iterators."""
    todo: list[Any] = [part for to in standings for part in (to.parts, *to.inner)]
    for part in todo:
        todo.extend(inside for inside in part if type(inside) is tuple)
    return set(map(id, todo))


def _connected(left: list[int], olds: list[Any], standings: list[Standing]) -> list[list[int]]:
    """Return groups of those `left` that contain each other."""
    which = {id(olds[index]) for index in left}
    groups: list[tuple[list[int], set[int]]] = []
    for index in left:
        near = {id(part) for part in (olds[index], *(part for part, _ in standings[index].inner))} & which
        touched = [group for group in groups if not group[1].isdisjoint(near)]
        members = sorted((index, *(one for group, _ in touched for one in group)))
        groups = [group for group in groups if group not in touched] + [(members, near.union(*(ids for _, ids in touched)))]
    return [members for members, _ in groups]


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


def _take_items(iterator: Any, to: Standing) -> None:
    """Advance an `enumerate` or `islice` together with its inner iterators, if that runs no user code."""
    if type(iterator) not in (enumerate, itertools.islice) or not _runs_no_code(iterator):
        return
    now, then = (parts[1] for parts in (parts_of(iterator) or to.parts, to.parts))
    if type(iterator) is enumerate:
        behind(iterator, max(0, then[1] - now[1]))
    elif len(then) < 3:  # it has ended
        behind(iterator, None)
    elif len(now) > 2:
        behind(iterator, max(0, -((now[1] - then[1]) // now[3])))


def _runs_no_code(iterator: Any) -> bool:
    kind = type(iterator)
    if kind in _INDEXED or kind in _COUNTED or kind is itertools.count:
        return kind is not _OF_ITEMS
    parts = parts_of(iterator)
    return kind in _TAKE_IN_TURN and parts is not None and all(_runs_no_code(part) for part in parts[1] if is_iterator(part))


_OF_ITEMS = type(iter(_Items()))  # it calls the ``__getitem__`` of a class
_TAKE_IN_TURN = frozenset((enumerate, itertools.islice, zip))


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


def _why_stuck(holders: list[Any], olds: list[Any]) -> str:
    """Return why the `holders` of an iterator cannot be given another one; an empty text if they can."""
    by = set(map(id, olds))
    kinds = ", ".join(sorted({type(old).__name__ for old in olds}))
    for holder in holders:
        if isinstance(holder, tuple | frozenset | set) or (is_iterator(holder) and id(holder) not in by):
            return f"a {type(holder).__name__} holds it ({kinds})"
    return ""


def _replace(holders: list[Any], olds: list[Any], news: list[Any]) -> None:
    """Replace the references of `holders` to `olds` by references to `news`."""
    by = {id(old): new for old, new in zip(olds, news, strict=True)}
    for holder in holders:
        if isinstance(holder, list | deque):
            for index, value in enumerate(holder):
                if id(value) in by:
                    holder[index] = by[id(value)]
        elif isinstance(holder, dict):
            _refill(holder, by)
        elif isinstance(holder, CellType):
            holder.cell_contents = by[id(holder.cell_contents)]
        elif not is_iterator(holder):
            for attributes in attribute_holders(holder):
                _refill(attributes, by)


def _refill(holder: MutableMapping[Any, Any], by: dict[int, Any]) -> None:
    for key, value in list(holder.items()):
        if id(value) in by:
            holder[key] = by[id(value)]

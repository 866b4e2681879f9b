"""Iterators of running loops: they count iterations, and have what a snapshot needs of the loop."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, GeneratorType
from typing import Any, Protocol

from ...analysis.resume_points import LoopPlace
from ..data.iteration_places import IteratorState
from .beginnings import Beginning
from .iterable_kinds import OVER_DICTS, VIEWS, is_plain, is_progress_bar, keeps_its_place, may_draw_first, says_all, under_way


class Run(Protocol):
    """The interface by which a loop reports its iterations."""

    collecting: list[list[IteratorState]]
    """The iterations over data loaders of the loops whose items are being fetched."""

    def boundary(self, loop: Loop | WhileLoop) -> None:
        """Note that an iteration is about to begin."""

    def arrived(self) -> None:
        """Restore the state: the run resumes here."""


def key(kind: str, number: int) -> str:
    """Return the key, which is no variable name, of a loop's saved ``iterator``, ``iterable``, ``beginning`` or ``cursors``."""
    return f"{kind} of {number}"


class Loop:
    """The iterator of a ``for`` loop.

    Parameters
    ----------
    iterable, items : object
        The iterable of the loop, and its iterator.
    beginning : Beginning, optional
        The states of random streams and of the iterable when it was evaluated, or when its iterator was made.
    cursors : list of IteratorState
        Iterations over data loaders that the iterator has begun.
    stale : str
        The name of a generator that the iterable uses and that had begun before the loop; empty if there is none.

    Attributes
    ----------
    targets : object
        The first values of the targets, in an :class:`EnteredLoop`.
    """

    __slots__ = ("__weakref__", "beginning", "count", "cursors", "items", "iterable", "loops", "place", "stale", "targets")

    def __init__(
        self,
        loops: Run,
        place: LoopPlace,
        iterable: Any,
        items: Iterator[Any],
        *,
        count: int = 0,
        beginning: Beginning | None = None,
        cursors: list[IteratorState] | None = None,
        stale: str = "",
    ) -> None:
        self.loops, self.place, self.iterable, self.items = loops, place, iterable, items
        self.count, self.beginning, self.stale = count, beginning, stale
        self.cursors = cursors if cursors is not None else []
        self.targets: Any = None

    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> Any:
        self.loops.boundary(self)
        item = next(self.items)
        self.count += 1
        return item

    def why_not(self, *, is_running: bool) -> str:
        """Return why a run cannot be resumed inside this loop; empty if it can."""
        if not is_running and not self.place.plain_targets:
            return "the loop assigns to other targets than names of its own"
        if self._has_state():
            return ""
        if self.stale:
            return f"`{self.stale}` had started before the loop"
        if self.items is self.iterable and self.place.is_name and type(self.items) is not GeneratorType:
            return "the loop walks over an iterator made before it, whose position cannot be saved"
        if self.place.rebound and not self._can_begin_again():
            return f"the loop assigns `{min(self.place.rebound)}`, over which it walks"
        return ""

    def state_dict(self, first_number: int) -> dict[str, Any]:
        """Return the state for a snapshot, by keys that are no variable names."""
        number = self.place.number - first_number
        if self._has_state():
            return {key("iterator", number): self.items}
        found: dict[str, Any] = {}
        if self._can_begin_again():
            found[key("iterable", number)] = self.iterable
        if self.beginning is not None:
            found[key("beginning", number)] = self.beginning
        if self.cursors:
            found[key("cursors", number)] = list(self.cursors)
        return found

    def _has_state(self) -> bool:
        """Return whether the iterator can be pickled at its position."""
        kind = type(self.items)
        if kind in OVER_DICTS:  # what they write down are the rest of the items as they are now
            return type(self.iterable) in VIEWS and self.place.draws
        if keeps_its_place(kind):
            return says_all(self.items, of_dicts=self.place.draws)
        # An iterator of the user's own class holds its state, or it cannot be saved.
        return self.items is self.iterable and kind is not GeneratorType and kind.__module__ == "__main__"

    def _can_begin_again(self) -> bool:
        return self.iterable is not self.items and type(self.iterable) not in VIEWS and not is_progress_bar(self.iterable)


class WatchedLoop(Loop):
    """The iterator of a ``for`` loop over an iterable that runs code for each item, and may iterate over data loaders there."""

    __slots__ = ()

    def __next__(self) -> Any:
        self.loops.boundary(self)
        return self.fetch()

    def fetch(self) -> Any:
        """Return the next item."""
        collecting = self.loops.collecting
        collecting.append(self.cursors)
        try:
            item = next(self.items)
        finally:
            collecting.pop()
        self.count += 1
        return item


class EnteredLoop(WatchedLoop):
    """A loop around the position of a resumed run: its targets get the values that they had, which the code on the path may need."""

    __slots__ = ()

    def __next__(self) -> Any:
        self.__class__ = WatchedLoop  # type: ignore[assignment]
        targets, self.targets = self.targets, None
        return targets


class ResumedLoop(WatchedLoop):
    """The loop with whose next iteration the run resumes."""

    __slots__ = ()

    def __next__(self) -> Any:
        self.__class__ = WatchedLoop  # type: ignore[assignment]
        self.loops.arrived()
        return self.fetch()


class WhileLoop:
    """A ``while`` loop: `count` iterations have begun."""

    __slots__ = ("count", "place")

    def __init__(self, place: LoopPlace, count: int) -> None:
        self.place, self.count = place, count

    def why_not(self, *, is_running: bool) -> str:  # noqa: ARG002  # as of the other
        """Return an empty string: a run can be resumed inside."""
        return ""

    def state_dict(self, first_number: int) -> dict[str, Any]:  # noqa: ARG002
        """Return nothing: the state of the loop is that of the names."""
        return {}


def new_loop(loops: Run, place: LoopPlace, iterable: Any, frame: FrameType, cursors: list[IteratorState], drawn: Beginning | None) -> Loop:
    """Return a loop that begins in `frame`; `drawn` are the states of random streams before `iterable` was evaluated."""
    beginning = drawn
    if is_plain(iterable):
        items: Iterator[Any] = iter(iterable)
        return Loop(loops, place, iterable, items)
    if may_draw_first(iterable):
        beginning = Beginning([iterable])
    items = iter(iterable)
    stale = under_way(frame, place.sources)
    return WatchedLoop(loops, place, iterable, items, beginning=beginning, cursors=cursors, stale=stale)

"""A loop while it runs: its iterator, how many items it gave, and what of it goes into a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, GeneratorType
from typing import Any, Protocol

from ...analysis.resume_points import LoopPlace
from ..data.iteration_places import IteratorState
from .beginnings import Beginning
from .iterable_kinds import OVER_DICTS, VIEWS, is_plain, is_progress_bar, keeps_its_place, may_draw_first, says_all, under_way


class Run(Protocol):
    """What a loop tells of its iterations."""

    collecting: list[list[IteratorState]]
    """The cursors of the loops whose items are being fetched."""

    def boundary(self, loop: Loop | WhileLoop) -> None:
        """Take note that an iteration is about to begin."""

    def arrived(self) -> None:
        """Make all as it was: the run goes on here."""


def key(kind: str, number: int) -> str:
    """Return a key, which no variable has, of what is saved of a loop: its ``iterator``, ``iterable``, ``beginning`` or ``cursors``."""
    return f"{kind} of {number}"


class Loop:
    """The iterator of a ``for`` loop.

    Parameters
    ----------
    iterable, items : object
        What the loop walks over, and the iterator of that.
    beginning : Beginning, optional
        How random streams and the iterable were when that was evaluated, or its iterator made.
    cursors : list of IteratorState
        Iterations over data loaders that the iterator has begun.
    stale : str
        A generator of which the iterable is made and which had begun before the loop; empty if there is none.

    Attributes
    ----------
    targets : object
        What the targets get first, in an :class:`EnteredLoop`.
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
        """Return what keeps a run from being resumed inside this loop; empty if nothing does."""
        if not is_running and not self.place.plain_targets:
            return "the loop assigns to other targets than names of its own"
        if self._has_state():
            return ""
        if self.stale:
            return f"`{self.stale}` had started before the loop"
        if self.place.rebound and not self._can_begin_again():
            return f"the loop assigns `{min(self.place.rebound)}`, over which it walks"
        return ""

    def state_dict(self, first_number: int) -> dict[str, Any]:
        """Return what goes into a snapshot, by keys that no variable has."""
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
        """Return whether the iterator itself can be saved, and what it gives after that is what it would have given."""
        kind = type(self.items)
        if kind in OVER_DICTS:  # what they write down are the rest of the items as they are now
            return type(self.iterable) in VIEWS and self.place.draws
        if keeps_its_place(kind):
            return says_all(self.items)
        # An iterator of the user's own class holds its state, or it cannot be saved.
        return self.items is self.iterable and kind is not GeneratorType and kind.__module__ == "__main__"

    def _can_begin_again(self) -> bool:
        return self.iterable is not self.items and type(self.iterable) not in VIEWS and not is_progress_bar(self.iterable)


class WatchedLoop(Loop):
    """The iterator of a ``for`` loop over what runs code for each item, and may begin to iterate over data loaders there."""

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
    """A loop around the place where the run goes on: its targets get the values that they had, which the way there may need."""

    __slots__ = ()

    def __next__(self) -> Any:
        self.__class__ = WatchedLoop  # type: ignore[assignment]
        targets, self.targets = self.targets, None
        return targets


class ResumedLoop(WatchedLoop):
    """The loop with whose next iteration the run goes on."""

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
        """Return an empty text: nothing keeps a run from being resumed inside."""
        return ""

    def state_dict(self, first_number: int) -> dict[str, Any]:  # noqa: ARG002
        """Return nothing: its state is that of the names."""
        return {}


def new_loop(loops: Run, place: LoopPlace, iterable: Any, frame: FrameType, cursors: list[IteratorState], drawn: Beginning | None) -> Loop:
    """Return a loop that begins in `frame`; `drawn` is how streams were before `iterable` was evaluated."""
    beginning = drawn
    if is_plain(iterable):
        items: Iterator[Any] = iter(iterable)
        return Loop(loops, place, iterable, items)
    if may_draw_first(iterable):
        beginning = Beginning([iterable])
    items = iter(iterable)
    stale = under_way(frame, place.sources)
    return WatchedLoop(loops, place, iterable, items, beginning=beginning, cursors=cursors, stale=stale)

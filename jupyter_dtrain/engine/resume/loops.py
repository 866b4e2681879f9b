"""Loops that a run can be resumed in: where it is, what it needs to be there again, and the jump to it.

The text was rewritten (`capture.resumable`), so every loop of the cell and of its functions asks here for its next item. That
is a boundary: nothing is half done there, and the values of names and the states of the loops say all. To go on in another
process, the values are put back first and the cell is started with a position to jump to: it runs through the
statements around that position only, down the calls that lead to it, and is live from there.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from ...analysis.ast_nodes import LIVE, RUNTIME
from ...analysis.resume_points import LoopPlace
from ...system.patches import put
from ..data.iteration_places import IteratorState, SourceState
from .beginnings import Beginning, begins_its_own_way
from .call_stack import FrameLocation, NoPlace, call_without, loops_around, whereabouts
from .iterable_kinds import is_plain, may_draw_first, under_way
from .jump import Jump
from .loop_iterators import FinishedLoop, Loop, WatchedLoop, WhileLoop
from .managers import Managed, Recipe, is_neutral
from .position import Position, read_names
from .rewritten_code import Texts


class Loops:
    """The loops of one run on this engine.

    Parameters
    ----------
    on_boundary : callable
        Called before every iteration of a loop; `position` and `values` may be asked then.
    say : callable
        Told what the user should know of a run that is resumed.

    Attributes
    ----------
    at : int
        Where the frame that runs is to jump to; -1 while the run is live.
    texts : Texts
        The cell's and those of its functions.
    why_not : str
        Why `position` was ``None`` the last time that it was.
    """

    def __init__(self, *, on_boundary: Callable[[], None], say: Callable[[str], None]) -> None:
        self.at = LIVE
        self.paused = LIVE
        self.why_not = ""
        self.value: Any = None  # of the cell's last line
        self.namespace: dict[str, Any] = {}
        self.on_boundary: Callable[[], None] = on_boundary
        self.is_quiet = False
        self._say = say
        self._thread = threading.get_ident()
        self.texts = Texts()
        self._running: Loop | WhileLoop | None = None  # whose boundary it is
        self._active: dict[tuple[int, int], weakref.ref[Loop] | WhileLoop] = {}  # by frame and number
        self._most_active = 500  # before it is looked which have ended
        self.collecting: list[list[IteratorState]] = []  # the cursors of the loops whose items are being fetched
        self._managers: dict[tuple[int, int, int], Managed] = {}  # by frame, number and index in the header
        self._drawn: dict[int, Beginning] = {}  # before the iterables of loops were evaluated
        self._jump: Jump | None = None

    # -- texts -------------------------------------------------------------------------------------------------------

    def adopt(self, objects: Iterable[object], sources: Mapping[str, str]) -> None:
        """Let functions and methods of classes run the rewritten code of their texts, from the cell's start to the end of `installed`."""
        self.texts.adopt(objects, sources)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let rewritten code find this. At the end functions have their original code back."""
        before = getattr(builtins, RUNTIME, None)
        put(builtins, RUNTIME, self)
        _installed.add(self)
        try:
            yield
        finally:
            self.texts.release()
            self.is_quiet = True
            # Functions that the cell made and somebody keeps still ask for a run.
            put(builtins, RUNTIME, before if before is not None else FinishedLoop())

    # -- where the run is --------------------------------------------------------------------------------------------

    def position(self) -> Position | None:
        """Return where the run is, at a boundary; ``None`` if it cannot be resumed there (`why_not` says why)."""
        try:
            return Position(tuple(place.position() for place in self._places()))
        except NoPlace as error:
            self.why_not = str(error)
            return None

    def values(self) -> list[dict[str, Any]]:
        """Return what the frames of `position` need beside the cell's names: functions' variables, and states of loops."""
        return [place.values() for place in self._places()]

    def around(self) -> list[Loop | WhileLoop] | None:
        """Return the loops around a boundary, outermost first; ``None`` where not all are known."""
        frame, running = self._boundary_frame()
        if frame is None or running is None:
            return None
        return loops_around(frame, running, self.texts, self._loop_of)

    def _places(self) -> list[FrameLocation]:
        frame, running = self._boundary_frame()
        if frame is None or running is None:
            raise NoPlace("no loop is about to begin an iteration")
        return whereabouts(frame, running, self.texts, self._loop_of, self._managers_of)

    def _boundary_frame(self) -> tuple[FrameType | None, Loop | WhileLoop | None]:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in _BOUNDARIES:
            frame = frame.f_back
        return None if frame is None else frame.f_back, self._running

    def _loop_of(self, frame: FrameType, number: int) -> Loop | WhileLoop | None:
        entry = self._active.get((id(frame), number))
        return entry() if isinstance(entry, weakref.ref) else entry

    def _managers_of(self, frame: FrameType) -> list[tuple[int, int, Managed]]:
        return [(number, index, manager) for (owner, number, index), manager in self._managers.items() if owner == id(frame)]

    # -- what rewritten code calls while it is live ------------------------------------------------------------------

    def saved(self, number: int) -> bool:
        """Say whether a loop's iterable is there already and need not be evaluated."""
        if self.at >= 0:
            return self._the_jump().saved(number)
        place = self.texts.loops.get(number)
        if place is not None:  # the code is of this run
            self.collecting.append([])
            sources = [] if place.is_name else [*read_names(sys._getframe(1), place.sources).values()]
            if place.draws or any(map(begins_its_own_way, sources)):  # `enumerate(loader)` begins when it is evaluated
                self._drawn[number] = Beginning(sources)
        return False

    def loop(self, number: int, iterable: Any) -> Iterator[Any]:
        """Return an iterator over `iterable` that tells of each iteration."""
        frame = sys._getframe(1)
        if self._jump is not None and self._jump.has_seen(number):
            return self._jump.loop(number, iterable, frame)
        place = self.texts.loops.get(number)
        if place is None:
            return iter(iterable)
        cursors = self.collecting[-1]
        try:
            return self.register(frame, self._make(place, iterable, frame, cursors))
        finally:
            self.collecting.pop()

    def _make(self, place: LoopPlace, iterable: Any, frame: FrameType, cursors: list[IteratorState]) -> Loop:
        beginning = self._drawn.pop(place.number, None)
        if is_plain(iterable):
            items: Iterator[Any] = iter(iterable)
            return Loop(self, place, iterable, items)
        if may_draw_first(iterable):
            beginning = Beginning([iterable])
        items = iter(iterable)
        stale = under_way(frame, place.sources)
        return WatchedLoop(self, place, iterable, items, beginning=beginning, cursors=cursors, stale=stale)

    def register(self, frame: FrameType, loop: Loop) -> Loop:
        """Remember that a loop runs in a frame."""
        if len(self._active) > self._most_active:
            self._forget_ended()
        self._active[id(frame), loop.place.number] = weakref.ref(loop)
        return loop

    def manager(self, number: int, index: int, made: Any) -> Any:
        """Return the context manager to enter: that of a ``with`` statement, or what takes note of it."""
        again = self._jump.entered_again() if self._jump is not None and self.paused == number else None
        manager = made.manager() if isinstance(made, Recipe) else made
        known = hasattr(type(manager), "__enter__") and hasattr(type(manager), "__exit__")
        if is_neutral(manager) or not known or self.is_quiet or threading.get_ident() != self._thread or not self.namespace:
            return manager
        frame = sys._getframe(1)
        key = id(frame), number, index
        return Managed(manager, self.namespace, again, partial(self._managers.__setitem__, key), partial(self._managers.pop, key, None))

    def start(self, number: int) -> None:
        """Begin a ``while`` loop."""
        if len(self._active) > self._most_active:
            self._forget_ended()
        count = 0 if self.at < 0 or self._jump is None else self._jump.count_of(number)
        place = self.texts.loops.get(number)
        if place is not None:
            self._active[id(sys._getframe(1)), number] = WhileLoop(place, count)

    def turn(self, number: int) -> bool:
        """Come to the condition of a ``while`` loop. Returns whether its body is entered without asking it."""
        if self.at >= 0:
            assert self._jump is not None
            if not self._jump.resumes_at(number):
                return self._jump.inside_body(number)
            self._jump.finish()
            self._active[id(sys._getframe(1)), number].count += 1  # type: ignore[union-attr]  # a WhileLoop
            return False
        loop = self._active.get((id(sys._getframe(1)), number))
        if loop is not None:
            self.boundary(loop)  # type: ignore[arg-type]  # a WhileLoop
            loop.count += 1  # type: ignore[union-attr]
        return False

    def boundary(self, loop: Loop | WhileLoop) -> None:
        """Tell of a boundary."""
        if self.is_quiet or self._jump is not None or threading.get_ident() != self._thread:
            return
        self._running = loop
        self.on_boundary()
        self._running = None

    def _forget_ended(self) -> None:
        running = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
        for key, entry in list(self._active.items()):
            if key[0] not in running or (isinstance(entry, weakref.ref) and entry() is None):
                del self._active[key]
        self._most_active = 2 * len(self._active) + 500

    # -- cursors of data loaders -------------------------------------------------------------------------------------

    def note(self, cursor: IteratorState) -> None:
        """Take note of an iteration over a data loader that begins."""
        if self.collecting:
            self.collecting[-1].append(cursor)

    def restored_state(self) -> IteratorState | None:
        """Return where the iteration over a data loader that begins was when the snapshot was taken, if it is one of then."""
        return None if self._jump is None or not self._jump.again else self._jump.again.popleft()

    def put_back(self, moment: SourceState) -> None:
        """Let random streams of a data loader have the states of `moment` when the jump is over."""
        if self._jump is not None:
            self._jump.moments.append(moment)

    # -- the jump ----------------------------------------------------------------------------------------------------

    def jump(
        self,
        position: Position,
        values: list[dict[str, Any]],
        *,
        namespace_unsaved: Set[str],
        unsaved: Sequence[Set[str]],
        on_resumed: Callable[[], None],
    ) -> None:
        """Let the cell that is run next go on at `position`.

        Parameters
        ----------
        values : list of dict
            What `values` had returned, less what could not be saved: names in `unsaved`.
        namespace_unsaved : set of str
            Names of the cell that could not be saved. The statements that bind them are run again.
        on_resumed : callable
            Called when all is as it was, just before the run is live.
        """
        missing = [set(namespace_unsaved), *(set(names) for names in unsaved[1:])]
        self._jump = Jump(self, self.texts, position, values, missing, self._say, on_resumed)

    @contextmanager
    def running(self, namespace: dict[str, Any]) -> Iterator[None]:
        """Let the cell's code run in the ``with`` block, from where it is to go on."""
        self.value = None
        self.namespace = namespace
        if self._jump is not None:
            self._jump.start(namespace)
        try:
            yield
        except Exception as error:
            if self._jump is not None:
                self._jump.fail(f"{type(error).__name__}: {error}", error)
            raise
        if self._jump is not None:
            self._jump.fail("the cell came to its end before")

    def take_value(self) -> Any:
        """Return the value of the cell's last line, which is not kept."""
        value, self.value = self.value, None
        return value

    def arrived(self) -> None:
        """Make all as it was: the run goes on here."""
        self._the_jump().finish()

    @property
    def is_jumping(self) -> bool:
        """Whether the run is on its way to where it goes on."""
        return self._jump is not None

    def done(self) -> None:
        """Forget the jump: the run is live."""
        self._jump = None
        self.at = LIVE

    def enter_function(self, index: int) -> None:
        """Begin a function on the way to where the run is to go on."""
        self._the_jump().enter_function(self.texts.units.get(index), sys._getframe(1))

    def replays(self, number: int) -> bool:
        """Say whether a statement that lies before the place has to be run again, for a name that was not saved."""
        return self._the_jump().replays(number)

    def replayed(self) -> None:
        """Go on with the jump after a statement that was run again."""
        self._the_jump().unpause()

    def again(self, number: int, index: int) -> Recipe | None:
        """Return how to make a context manager on the way to the place; ``None``: its expression is evaluated, as that was."""
        jump = self._the_jump()
        if index == 0:
            jump.pause()
            self.paused = number
        return jump.enter_again(number, index)

    def unpause(self) -> None:
        """Go on with the jump in the body of a ``with``."""
        self.paused = LIVE
        self._the_jump().unpause()

    def callee(self, name: str) -> Any:
        """Return the method to call on the way, whose object is not to be made again."""
        return self._the_jump().callee(name)

    def filled(self, function: Any) -> Any:
        """Return `function` as one that needs no arguments: on the way they are given their values when it has begun."""
        return partial(call_without, function)

    def _the_jump(self) -> Jump:
        assert self._jump is not None
        return self._jump


_installed: weakref.WeakSet[Loops] = weakref.WeakSet()
_BOUNDARIES = frozenset({Loop.__next__.__code__, WatchedLoop.__next__.__code__, Loops.turn.__code__})


def _be_quiet() -> None:
    """In a process that was forked from this one (a worker of a data loader) there is no run."""
    for loops in _installed:
        loops.is_quiet = True


os.register_at_fork(after_in_child=_be_quiet)

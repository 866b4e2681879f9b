"""Loops that a run can be resumed in: where it is, what it needs to be there again, and the jump to it.

The text was rewritten (:mod:`...analysis.rewrite`), so every loop of the cell and of its functions asks here for its next item. That is a
boundary: nothing is half done there, and the values of names and the states of the loops say all. To go on in another process, the values
are put back first and the cell is started with a position to jump to: it runs through the statements around that position only, down the
calls that lead to it, and is live from there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from ...analysis.ast_nodes import LIVE
from ..data.iteration_places import IteratorState, SourceState
from .beginnings import Beginning, begins_its_own_way
from .call_stack import call_without
from .jump import Jump
from .loop_iterators import Loop, WatchedLoop, WhileLoop, new_loop
from .loop_places import LoopPlaces
from .managed_blocks import Managed
from .managers import Recipe, is_neutral
from .position import Position, read_names
from .rewritten_code import Texts
from .text_runtime import found_by_texts


class Loops:
    """The loops of one run on this engine.

    Parameters
    ----------
    on_boundary : callable
        Called before every iteration of a loop; `places` may be asked then where the run is.
    say : callable
        Told what the user should know of a run that is resumed.

    Attributes
    ----------
    at : int
        Where the frame that runs is to jump to; -1 while the run is live.
    texts : Texts
        The cell's and those of its functions.
    places : LoopPlaces
    """

    def __init__(self, *, on_boundary: Callable[[], None], say: Callable[[str], None]) -> None:
        self.at = self.paused = LIVE
        self.value: Any = None  # of the cell's last line
        self.namespace: dict[str, Any] = {}
        self.on_boundary, self.is_quiet = on_boundary, False
        self._say, self._thread = say, threading.get_ident()
        self.texts = Texts()
        self.places = LoopPlaces(self.texts, _BOUNDARIES)
        self._active = self.places.active
        self.collecting: list[list[IteratorState]] = []  # the cursors of the loops whose items are being fetched
        self._drawn: dict[int, Beginning] = {}  # before the iterables of loops were evaluated
        self._jump: Jump | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let rewritten code find this. At the end functions have their original code back."""
        with found_by_texts(self):
            try:
                yield
            finally:
                self.texts.release()
                self.is_quiet = True

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
            return self.places.register(frame, new_loop(self, place, iterable, frame, cursors, self._drawn.pop(number, None)))
        finally:
            self.collecting.pop()

    def manager(self, number: int, index: int, made: Any) -> Any:
        """Return the context manager to enter: that of a ``with`` statement, or what takes note of it."""
        again = self._jump.entered_again() if self._jump is not None and self.paused == number else None
        manager = made.manager() if isinstance(made, Recipe) else made
        known = hasattr(type(manager), "__enter__") and hasattr(type(manager), "__exit__")
        if is_neutral(manager) or not known or self.is_quiet or threading.get_ident() != self._thread or not self.namespace:
            return manager
        frame = sys._getframe(1)
        key, managers = (id(frame), number, index), self.places.managers
        return Managed(manager, self.namespace, again, partial(managers.__setitem__, key), partial(managers.pop, key, None))

    def start(self, number: int) -> None:
        """Begin a ``while`` loop."""
        if len(self._active) > self.places.most_active:
            self.places.forget_ended()
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
        self.places.running = loop
        self.on_boundary()
        self.places.running = None

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
        self.value, self.namespace = None, namespace
        with nullcontext() if self._jump is None else self._jump.under_way(namespace):
            yield

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


_BOUNDARIES = frozenset({Loop.__next__.__code__, WatchedLoop.__next__.__code__, Loops.turn.__code__})

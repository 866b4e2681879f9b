"""Resumable loops: the position of a run, the state that it needs there, and the jump to it.

The cell's code is rewritten (:mod:`...analysis.rewrite`), so every loop of the cell and of its functions asks here for its next item. At
such a boundary the values of names and the states of loops are the full state of the run. To resume in another process, the values are
restored first. The cell then starts with a position to jump to, and runs only the statements and calls that lead there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from ...analysis.ast_nodes import LIVE
from ..data.iteration_places import IteratorState
from ..data.source_state import SourceState
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
        Called before every iteration of a loop, where `places` knows the position of the run.
    say : callable
        Shows notes about a resumed run to the user.

    Attributes
    ----------
    at : int
        Number of the place to which the frame that runs jumps; -1 while the run is live.
    texts : Texts
        The rewritten code of the cell and of its functions.
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
        """Let rewritten code find this object, in the ``with`` block. At its end functions get their original code back."""
        with found_by_texts(self):
            try:
                yield
            finally:
                self.texts.release()
                self.is_quiet = True

    # -- what rewritten code calls while it is live ------------------------------------------------------------------

    def saved(self, number: int) -> bool:
        """Return whether a loop's iterable was restored and need not be evaluated."""
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
        """Return an iterator over `iterable` that reports each iteration."""
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
        """Return the context manager of a ``with`` statement to enter, wrapped if it has to be followed."""
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
        """Note that the condition of a ``while`` loop is next; return whether its body is entered without evaluating it."""
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
        """Report a loop boundary."""
        if self.is_quiet or self._jump is not None or threading.get_ident() != self._thread:
            return
        self.places.running = loop
        self.on_boundary()
        self.places.running = None

    # -- cursors of data loaders -------------------------------------------------------------------------------------

    def note(self, cursor: IteratorState) -> None:
        """Note an iteration over a data loader that begins."""
        if self.collecting:
            self.collecting[-1].append(cursor)

    def restored_state(self) -> IteratorState | None:
        """Return the saved state of an iteration over a data loader that begins, if it was under way at the snapshot."""
        return None if self._jump is None or not self._jump.again else self._jump.again.popleft()

    def put_back(self, moment: SourceState) -> None:
        """Restore the random streams of a data loader to `moment` at the end of the jump."""
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
        """Let the cell that runs next resume at `position`.

        Parameters
        ----------
        values : list of dict
            The result of `values`, without what could not be saved.
        namespace_unsaved : set of str
            Names of the cell that could not be saved. The statements that bind them run again.
        on_resumed : callable
            Called when the state is restored, just before the run is live.
        """
        missing = [set(namespace_unsaved), *(set(names) for names in unsaved[1:])]
        self._jump = Jump(self, self.texts, position, values, missing, self._say, on_resumed)

    @contextmanager
    def running(self, namespace: dict[str, Any]) -> Iterator[None]:
        """Run the cell's code in the ``with`` block, from the position at which it resumes."""
        self.value, self.namespace = None, namespace
        with nullcontext() if self._jump is None else self._jump.under_way(namespace):
            yield

    def take_value(self) -> Any:
        """Return the value of the cell's last line, and forget it."""
        value, self.value = self.value, None
        return value

    def arrived(self) -> None:
        """Restore the state: the run resumes here."""
        self._the_jump().finish()

    @property
    def is_jumping(self) -> bool:
        """Whether the run is jumping to its position."""
        return self._jump is not None

    def done(self) -> None:
        """End the jump: the run is live."""
        self._jump = None
        self.at = LIVE

    def enter_function(self, index: int) -> None:
        """Enter a function on the path of the jump."""
        self._the_jump().enter_function(self.texts.units.get(index), sys._getframe(1))

    def replays(self, number: int) -> bool:
        """Return whether a statement before the position has to run again, for a name that was not saved."""
        return self._the_jump().replays(number)

    def replayed(self) -> None:
        """Continue the jump after a statement that has run again."""
        self._the_jump().unpause()

    def again(self, number: int, index: int) -> Recipe | None:
        """Return how to make a context manager on the path; ``None``: evaluate its expression."""
        jump = self._the_jump()
        if index == 0:
            jump.pause()
            self.paused = number
        return jump.enter_again(number, index)

    def unpause(self) -> None:
        """Continue the jump in the body of a ``with``."""
        self.paused = LIVE
        self._the_jump().unpause()

    def callee(self, name: str) -> Any:
        """Return the method to call on the path, with the object on which it was called."""
        return self._the_jump().callee(name)

    def filled(self, function: Any) -> Any:
        """Return `function` without required arguments: on the path, they get their values after it is entered."""
        return partial(call_without, function)

    def _the_jump(self) -> Jump:
        assert self._jump is not None
        return self._jump


_BOUNDARIES = frozenset({Loop.__next__.__code__, WatchedLoop.__next__.__code__, Loops.turn.__code__})

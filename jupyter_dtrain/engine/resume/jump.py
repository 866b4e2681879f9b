"""The jump: how a resumed run gets through the code to its position, and what is restored there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, GeneratorType
from typing import Any, NoReturn, Protocol

from ...analysis.ast_nodes import LIVE
from ...analysis.resume_points import Unit
from ..data.iteration_places import IteratorState
from ..data.source_state import SourceState
from .beginnings import Beginning
from .iterable_kinds import is_progress_bar
from .jump_path import PROGRESS, JumpPath
from .loop_iterators import EnteredLoop, ResumedLoop, Run, key
from .loop_places import LoopPlaces
from .managed_blocks import Again, again
from .managers import Recipe
from .position import Position, read_variables, write_variables
from .rewritten_code import Texts


class Jumping(Run, Protocol):
    """What rewritten code compares with; the jump sets `at`."""

    at: int
    places: LoopPlaces

    def done(self) -> None:
        """End the jump: the run is live."""


class Jump:
    """One jump: the frames and loops that lead to the position, and their state there."""

    def __init__(
        self,
        loops: Jumping,
        texts: Texts,
        position: Position,
        values: Sequence[Mapping[str, Any]],
        missing: list[set[str]],
        say: Callable[[str], None],
        on_resumed: Callable[[], None],
    ) -> None:
        self._loops = loops
        self._path = JumpPath(texts, position, values, missing)
        self._say, self._on_resumed = say, on_resumed
        self._paused: list[int] = []
        self._is_over = False
        self._evaluated: list[int] = []  # loops whose iterable is being evaluated, or need not be
        self._namespace: dict[str, Any] = {}
        self._saved_names: dict[str, Any] = {}
        self._again: Again | None = None
        self._present: Beginning | None = None  # of what is walked over again
        self.again: deque[IteratorState] = deque()  # of the iterable that is made again
        self.moments: list[SourceState] = []  # to be the present ones

    def _start(self, namespace: dict[str, Any]) -> None:
        """Begin, with the names restored."""
        self._namespace, self._saved_names = namespace, dict(namespace)
        self._path.find()
        self._loops.at = self._path.target

    @contextmanager
    def under_way(self, namespace: dict[str, Any]) -> Iterator[None]:
        """Jump in the code of the ``with`` block; fail if it does not reach the position."""
        self._start(namespace)
        try:
            yield
        except Exception as error:
            if not self._is_over:
                self.fail(f"{type(error).__name__}: {error}", error)
            raise
        if not self._is_over:
            self.fail("the cell came to its end before")

    def fail(self, reason: str, error: Exception | None = None) -> NoReturn:
        """Raise `JumpFailed`."""
        self._path.fail(reason, error)

    # -- the frame that runs -----------------------------------------------------------------------------------------

    def count_of(self, number: int) -> int:
        """Return how many iterations of a loop in this frame had begun."""
        return self._path.count(number) or 0

    def resumes_at(self, number: int) -> bool:
        """Return whether the run resumes with the next iteration of this loop."""
        return self._path.is_innermost and number == self._path.target

    def inside_body(self, number: int) -> bool:
        """Return whether the path leads into the body of this ``while``, and not into its condition or its ``else``."""
        place = self._path.unit.loops[number]
        return place.end_of_test < self._path.target <= place.end_of_body

    def enter_function(self, unit: Unit | None, frame: FrameType) -> None:
        """Enter a function on the path."""
        self._path.enter(unit, frame)
        self._loops.at = self._path.target

    def callee(self, name: str) -> Any:
        """Return the method with this name on the path, bound to the object on which it was called."""
        return self._path.callee(name)

    # -- what is evaluated on the way --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Suspend the jump, to evaluate something live."""
        self._paused.append(self._loops.at)
        self._loops.at = LIVE

    def unpause(self) -> None:
        """Continue the jump."""
        self._loops.at = self._paused.pop()

    def replays(self, number: int) -> bool:
        """Return whether a statement has to run again, live, for a name that was not saved."""
        if not self._path.unit.binders[number] & self._path.missing_here:
            return False
        self.pause()
        return True

    # -- context managers --------------------------------------------------------------------------------------------

    def enter_again(self, number: int, index: int) -> Recipe | None:
        """Restore what a context manager found at first, and return how to make it."""
        relative = number - self._path.unit.first_number
        if key(f"found {index}", relative) in self._path.missing_here:
            self.fail("what a `with` statement found when it was entered could not be saved")
        entered = again(self._path.values_here, index, relative, self._namespace)
        self._again, recipe = entered or (None, None)
        if self._again is not None:
            self._again.found.set(self._namespace)
        return recipe

    def entered_again(self) -> Again | None:
        """Return the context manager that is being entered again."""
        again, self._again = self._again, None
        return again

    # -- loops -------------------------------------------------------------------------------------------------------

    def saved(self, number: int) -> bool:
        """Return whether a loop's iterable was saved; if not, it is evaluated next, live."""
        relative = number - self._path.unit.first_number
        values = self._path.values_here
        self._evaluated.append(number)
        if self._path.count(number) is None or key("iterator", relative) in values or key("iterable", relative) in values:
            return True
        self._set_streams(relative)
        self._loops.at = LIVE
        return False

    def has_seen(self, number: int) -> bool:
        """Return whether `saved` was just called for this loop."""
        return bool(self._evaluated) and self._evaluated[-1] == number

    def loop(self, number: int, iterable: Any, frame: FrameType) -> Iterator[Any]:
        """Return the iterator of a loop on the path."""
        self._evaluated.pop()
        count = self._path.count(number)
        if count is None:  # the way leads through its `else`
            return iter(())
        unit, values = self._path.unit, self._path.values_here
        relative, place = number - unit.first_number, unit.loops[number]
        if key("iterator", relative) in values:
            items = iterable = values[key("iterator", relative)]
        else:
            if key("iterable", relative) in values:
                iterable = values[key("iterable", relative)]
                self._set_streams(relative)
            elif hasattr(iterable, "__next__") and place.is_name and type(iterable) is not GeneratorType:
                self.fail(f"what the loop in line {place.line} walks over could not be saved, and had begun before it")
            self._loops.at = LIVE
            items = iter(iterable)
            self._skip(items, count, place.line)
            if self._present is not None:
                self._present.set()
                self._present = None
            self.again.clear()
        self._loops.at = self._path.target
        kind = ResumedLoop if self.resumes_at(number) else EnteredLoop
        saved = {name: values.get(key(name, relative)) for name in ("beginning", "cursors")}
        loop = kind(self._loops, place, iterable, items, count=count, beginning=saved["beginning"], cursors=saved["cursors"])
        if kind is EnteredLoop:
            loop.targets = self._values_of(place.targets)
        return self._loops.places.register(frame, loop)

    def _values_of(self, targets: Any) -> Any:
        """Return the saved values of a loop's targets, ``None`` for those without one."""
        if isinstance(targets, tuple):
            return tuple(map(self._values_of, targets))
        return (self._saved_names if self._path.depth == 0 else self._path.values_here).get(targets)

    def _set_streams(self, relative: int) -> None:
        """Restore the random streams for an expression that is evaluated again."""
        values = self._path.values_here
        self.again.extend(values.get(key("cursors", relative), ()))
        beginning: Beginning | None = values.get(key("beginning", relative))
        if beginning is not None:
            self._present = beginning.now()
            beginning.set()

    def _skip(self, items: Iterator[Any], count: int, line: int) -> None:
        for done in range(count):
            try:
                next(items)
            except StopIteration:
                self.fail(f"the loop in line {line} has {done} items where it had {count} or more")

    # -- there -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Restore the rest of the state, and make the run live."""
        kept = {*self._saved_names, *self._path.missing[0], "__builtins__"}  # in which libraries in C look for `__import__`
        for name in [name for name in self._namespace if name not in kept]:
            del self._namespace[name]
        for name, value in self._saved_names.items():
            if name not in self._path.missing[0]:
                self._namespace[name] = value
        for frame, values, missing in zip(self._path.frames, self._path.values[1:], self._path.missing[1:], strict=True):
            write_variables(frame, values, keep=missing)
        names = [self._namespace, *(read_variables(frame) for frame in self._path.frames)]
        self._path.frames.clear()
        for variables, values in zip(names, self._path.values, strict=True):
            for name, done in values.get(PROGRESS, {}).items():
                bar: Any = variables.get(name)
                if is_progress_bar(bar):
                    bar.n = bar.initial = bar.last_print_n = done
        for name in sorted(self._path.missing[0] - self._namespace.keys()):
            self._say(f"`{name}` could not be saved, and no statement assigns it again: the cell continues without it.")
        for moment in reversed(self.moments):
            moment.set()
        self._is_over = True
        self._loops.done()
        self._on_resumed()
        self._forget()

    def _forget(self) -> None:
        """Let go of the snapshot's values: the frame that has begun the jump refers to it until the cell ends."""
        self._saved_names, self._present, self._on_resumed = {}, None, lambda: None
        self._path.values = ()
        self.again.clear()
        self.moments.clear()

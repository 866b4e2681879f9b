"""A jump: how the text is run through to the place where a run goes on, and what is put back there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, FunctionType, GeneratorType
from typing import Any, NoReturn, Protocol

from ...analysis.ast_nodes import LIVE
from ...analysis.resume_points import Unit
from ..data.iteration_places import IteratorState, SourceState
from .beginnings import Beginning
from .iterable_kinds import is_progress_bar
from .loop_iterators import EnteredLoop, Loop, ResumedLoop, Run, key
from .managers import Again, Recipe, again
from .position import Position, read_variables, write_variables
from .rewritten_code import Texts

# Keys that no variable has.
DEFINED_AGAIN = "functions that are defined again"
PROGRESS = "how far progress bars are"


class JumpFailed(BaseException):
    """The run cannot be resumed where it was. Not an ``Exception``: the cell's own handlers must not catch it."""


class Jumping(Run, Protocol):
    """What rewritten text asks for each comparison; the jump sets `at`."""

    at: int

    def register(self, frame: FrameType, loop: Loop) -> Loop:
        """Remember that a loop runs in a frame."""

    def done(self) -> None:
        """Forget the jump: the run is live."""


class Jump:
    """One jump: which frames and loops lead to the place, and what they are to hold there."""

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
        self._loops, self._texts = loops, texts
        self._position = position
        self._values = values
        self._missing = [names.union(values.get(DEFINED_AGAIN, ())) for names, values in zip(missing, values, strict=True)]
        self._say, self._on_resumed = say, on_resumed
        self._units: list[Unit] = []
        self._frames: list[FrameType] = []
        self._depth = 0
        self._paused: list[int] = []
        self._evaluated: list[int] = []  # loops whose iterable is being evaluated, or need not be
        self._namespace: dict[str, Any] = {}
        self._saved_names: dict[str, Any] = {}
        self._again: Again | None = None
        self._present: Beginning | None = None  # of what is walked over again
        self.again: deque[IteratorState] = deque()  # of the iterable that is made again
        self.moments: list[SourceState] = []  # to be the present ones

    def start(self, namespace: dict[str, Any]) -> None:
        """Begin, with the names as they were saved."""
        self._namespace, self._saved_names = namespace, dict(namespace)
        for frame in self._position.frames:
            found = self._texts.find(frame.filename, frame.name, frame.first_line)
            unit = found[1] if found is not None else None
            if unit is None or frame.number + unit.first_number not in (*unit.loops, *(call.number for call in unit.calls.values())):
                self.fail(f"there is no such place in {frame.filename} any more ({frame.describe()})")
            self._units.append(unit)
        self._loops.at = self._target

    def fail(self, reason: str, error: Exception | None = None) -> NoReturn:
        """Give up."""
        raise JumpFailed(f"The run cannot resume at {self._position.describe()}: {reason}.") from error

    # -- the frame that runs -----------------------------------------------------------------------------------------

    @property
    def _target(self) -> int:
        return self._position.frames[self._depth].number + self._units[self._depth].first_number

    @property
    def _is_innermost(self) -> bool:
        return self._depth == len(self._position.frames) - 1

    def _count(self, number: int) -> int | None:
        relative = number - self._units[self._depth].first_number
        return next((loop.count for loop in self._position.frames[self._depth].loops if loop.number == relative), None)

    def count_of(self, number: int) -> int:
        """Return how many iterations of a loop in this frame had begun."""
        return self._count(number) or 0

    def resumes_at(self, number: int) -> bool:
        """Return whether the run goes on with the next iteration of this loop."""
        return self._is_innermost and number == self._target

    def inside_body(self, number: int) -> bool:
        """Return whether the way leads into the body of this ``while``, and not into its condition or its ``else``."""
        place = self._units[self._depth].loops[number]
        return place.end_of_test < self._target <= place.end_of_body

    def enter_function(self, unit: Unit | None, frame: FrameType) -> None:
        """Enter a function on the way."""
        if self._is_innermost or self._units[self._depth + 1] is not unit:
            self.fail(f"{frame.f_code.co_name}() was called on the way")
        self._depth += 1
        self._frames.append(frame)
        write_variables(frame, self._values[self._depth])
        self._loops.at = self._target

    def callee(self, name: str) -> Any:
        """Return the method of this name that the way leads into, bound to what it was called on."""
        values = self._values[self._depth + 1]
        code = self._texts.find(*self._key(self._depth + 1))
        assert code is not None
        owner = values.get(code[0].co_varnames[0]) if code[0].co_argcount else None
        for kind in type(owner).__mro__:
            method = vars(kind).get(name)
            if isinstance(method, FunctionType) and method.__code__ is code[0]:
                return method.__get__(owner)
        return getattr(owner, name)

    def _key(self, depth: int) -> tuple[str, str, int]:
        frame = self._position.frames[depth]
        return frame.filename, frame.name, frame.first_line

    # -- what is evaluated on the way --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Evaluate something live."""
        self._paused.append(self._loops.at)
        self._loops.at = LIVE

    def unpause(self) -> None:
        """Go on with the way."""
        self._loops.at = self._paused.pop()

    def replays(self, number: int) -> bool:
        """Say whether a statement has to be run again, for a name that was not saved; if so it is run live."""
        if not self._units[self._depth].binders[number] & self._missing[self._depth]:
            return False
        self.pause()
        return True

    # -- context managers --------------------------------------------------------------------------------------------

    def enter_again(self, number: int, index: int) -> Recipe | None:
        """Let all be as a context manager found it at first, and return how to make it."""
        relative = number - self._units[self._depth].first_number
        if key(f"found {index}", relative) in self._missing[self._depth]:
            self.fail("what a `with` statement found when it was entered could not be saved")
        entered = again(self._values[self._depth], index, relative, self._namespace)
        self._again, recipe = entered or (None, None)
        if self._again is not None:
            self._again.found.set(self._namespace)
        return recipe

    def entered_again(self) -> Again | None:
        """Return the context manager that is on the way now."""
        again, self._again = self._again, None
        return again

    # -- loops -------------------------------------------------------------------------------------------------------

    def saved(self, number: int) -> bool:
        """Say whether a loop's iterable was saved; if not, it is evaluated next, live."""
        relative = number - self._units[self._depth].first_number
        values = self._values[self._depth]
        self._evaluated.append(number)
        if self._count(number) is None or key("iterator", relative) in values or key("iterable", relative) in values:
            return True
        self._set_streams(relative)
        self._loops.at = LIVE
        return False

    def has_seen(self, number: int) -> bool:
        """Return whether `saved` was asked for this loop just before."""
        return bool(self._evaluated) and self._evaluated[-1] == number

    def loop(self, number: int, iterable: Any, frame: FrameType) -> Iterator[Any]:
        """Return the iterator of a loop on the way."""
        self._evaluated.pop()
        count = self._count(number)
        if count is None:  # the way leads through its `else`
            return iter(())
        unit, values = self._units[self._depth], self._values[self._depth]
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
        self._loops.at = self._target
        kind = ResumedLoop if self.resumes_at(number) else EnteredLoop
        saved = {name: values.get(key(name, relative)) for name in ("beginning", "cursors")}
        loop = kind(self._loops, place, iterable, items, count=count, beginning=saved["beginning"], cursors=saved["cursors"])
        if kind is EnteredLoop:
            loop.targets = self._values_of(place.targets)
        return self._loops.register(frame, loop)

    def _values_of(self, targets: Any) -> Any:
        """Return the saved values of a loop's targets, ``None`` for those that have none."""
        if isinstance(targets, tuple):
            return tuple(map(self._values_of, targets))
        return (self._saved_names if self._depth == 0 else self._values[self._depth]).get(targets)

    def _set_streams(self, relative: int) -> None:
        """Let what is evaluated next draw the random numbers that it drew before."""
        values = self._values[self._depth]
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
        """Make all as it was, and the run live."""
        kept = {*self._saved_names, *self._missing[0], "__builtins__"}  # in which libraries in C look for `__import__`
        for name in [name for name in self._namespace if name not in kept]:
            del self._namespace[name]
        for name, value in self._saved_names.items():
            if name not in self._missing[0]:
                self._namespace[name] = value
        for frame, values, missing in zip(self._frames, self._values[1:], self._missing[1:], strict=True):
            write_variables(frame, values, keep=missing)
        names = [self._namespace, *(read_variables(frame) for frame in self._frames)]
        self._frames.clear()
        for variables, values in zip(names, self._values, strict=True):
            for name, done in values.get(PROGRESS, {}).items():
                bar: Any = variables.get(name)
                if is_progress_bar(bar):
                    bar.n = bar.initial = bar.last_print_n = done
        for name in sorted(self._missing[0] - self._namespace.keys()):
            self._say(f"`{name}` could not be saved, and no statement on the way binds it again: the cell continues without it.")
        for moment in reversed(self.moments):
            moment.set()
        self._loops.done()
        self._on_resumed()

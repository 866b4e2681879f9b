"""The path of a jump: the frames that lead to the position, their state there, and the progress of the jump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType, FunctionType
from typing import Any, NoReturn

from ...analysis.resume_points import Unit
from .position import Position, write_variables
from .rewritten_code import Texts

# Keys that no variable has.
DEFINED_AGAIN = "functions that are defined again"
PROGRESS = "how far progress bars are"


class JumpFailed(BaseException):
    """The run cannot be resumed at its position. No ``Exception``: the cell's own handlers must not catch it."""


class JumpPath:
    """The frames from the cell's to the innermost.

    Parameters
    ----------
    texts : Texts
    position : Position
    values : sequence of mapping
        The state of each frame there.
    missing : list of set of str
        Names in each frame that could not be saved.

    Attributes
    ----------
    depth : int
        Index of the frame that runs.
    frames : list of FrameType
        The frames of functions, in the order in which they were entered.
    """

    def __init__(self, texts: Texts, position: Position, values: Sequence[Mapping[str, Any]], missing: list[set[str]]) -> None:
        self._texts, self._position, self.values = texts, position, values
        self.missing = [names.union(values.get(DEFINED_AGAIN, ())) for names, values in zip(missing, values, strict=True)]
        self._units: list[Unit] = []
        self.frames: list[FrameType] = []
        self.depth = 0

    def find(self) -> None:
        """Find the rewritten code of each frame."""
        for frame in self._position.frames:
            found = self._texts.find(frame.filename, frame.name, frame.first_line)
            unit = found[1] if found is not None else None
            if unit is None or frame.number + unit.first_number not in (*unit.loops, *(call.number for call in unit.calls.values())):
                self.fail(f"there is no such place in {frame.filename} any more ({frame.describe()})")
            self._units.append(unit)

    def fail(self, reason: str, error: Exception | None = None) -> NoReturn:
        """Raise `JumpFailed`."""
        raise JumpFailed(f"The run cannot resume at {self._position.describe()}: {reason}.") from error

    @property
    def unit(self) -> Unit:
        """The rewritten code of the frame that runs."""
        return self._units[self.depth]

    @property
    def values_here(self) -> Mapping[str, Any]:
        """The state of the frame that runs."""
        return self.values[self.depth]

    @property
    def missing_here(self) -> set[str]:
        """The names in the frame that runs that could not be saved."""
        return self.missing[self.depth]

    @property
    def target(self) -> int:
        """The number of the loop or call that the frame that runs has to reach."""
        return self._position.frames[self.depth].number + self.unit.first_number

    @property
    def is_innermost(self) -> bool:
        """Whether the frame that runs is the one in which the run resumes."""
        return self.depth == len(self._position.frames) - 1

    def count(self, number: int) -> int | None:
        """Return how many iterations of a loop in this frame had begun, ``None`` if the loop was not running."""
        relative = number - self.unit.first_number
        return next((loop.count for loop in self._position.frames[self.depth].loops if loop.number == relative), None)

    def enter(self, unit: Unit | None, frame: FrameType) -> None:
        """Continue the path in a function that was entered."""
        if self.is_innermost or self._units[self.depth + 1] is not unit:
            self.fail(f"{frame.f_code.co_name}() was called on the way")
        self.depth += 1
        self.frames.append(frame)
        write_variables(frame, self.values_here)

    def callee(self, name: str) -> Any:
        """Return the method with this name on the path, bound to the object on which it was called."""
        values = self.values[self.depth + 1]
        place = self._position.frames[self.depth + 1]
        code = self._texts.find(place.filename, place.name, place.first_line)
        assert code is not None
        owner = values.get(code[0].co_varnames[0]) if code[0].co_argcount else None
        for kind in type(owner).__mro__:
            method = vars(kind).get(name)
            if isinstance(method, FunctionType) and method.__code__ is code[0]:
                return method.__get__(owner)
        return getattr(owner, name)

"""A place in a run that it can be resumed at: plain data, the same on all ranks that are at the same place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopPosition:
    """A loop that is running: its number and line, and how many of its iterations have begun."""

    number: int
    line: int
    count: int


@dataclass(frozen=True)
class FramePosition:
    """Where the cell, or a function, stands.

    Attributes
    ----------
    filename, name : str
    first_line : int
        Of the function.
    number, line : int
        Of the call that it is in; in the innermost frame of the loop whose next iteration is to begin.
    loops : tuple of LoopPosition
        The loops around that, outermost first.
    """

    filename: str
    name: str
    first_line: int
    number: int
    line: int
    loops: tuple[LoopPosition, ...]

    def describe(self) -> str:
        """Say where this is."""
        where = [f"line {self.line}"] if not self.loops or self.loops[-1].number != self.number else []
        where += [f"iteration {loop.count + (loop.number == self.number)} of line {loop.line}" for loop in reversed(self.loops)]
        text = ", ".join(where)
        return text if self.name == "<module>" else f"{self.name}(): {text}"


@dataclass(frozen=True)
class Position:
    """The frames from the cell to its innermost loop, outermost first."""

    frames: tuple[FramePosition, ...]

    @property
    def is_outermost(self) -> bool:
        """Whether it is a loop of the cell that is in no other."""
        return len(self.frames) == 1 and len(self.frames[0].loops) == 1

    def describe(self) -> str:
        """Say where this is, innermost first."""
        return ", in ".join(frame.describe() for frame in reversed(self.frames))

"""A position at which a run can be resumed: plain data, equal on all ranks that are at the same place."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any


@dataclass(frozen=True)
class LoopPosition:
    """A loop that is running: its number and line, and how many of its iterations have begun."""

    number: int
    line: int
    count: int


@dataclass(frozen=True)
class FramePosition:
    """The position in the cell or in a function.

    Attributes
    ----------
    filename, name : str
    first_line : int
        Of the function.
    number, line : int
        Of the present call; in the innermost frame, of the loop whose next iteration is about to begin.
    loops : tuple of LoopPosition
        The loops around it, outermost first.
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
        """Whether it is a loop of the cell that is in no other loop."""
        return len(self.frames) == 1 and len(self.frames[0].loops) == 1

    def describe(self) -> str:
        """Say where this is, innermost first."""
        return ", in ".join(frame.describe() for frame in reversed(self.frames))


# The variables of functions that are running, read and written: Python 3.13 made that easy, before it takes a call of the C API.


def read_variables(frame: FrameType) -> dict[str, Any]:
    """Return the values of a function's own variables, without those of enclosing functions."""
    own = {*frame.f_code.co_varnames, *frame.f_code.co_cellvars}
    local = frame.f_locals
    found = {name: value for name, value in local.items() if name in own}
    if sys.version_info < (3, 13):
        local.clear()  # a dict that the frame keeps, and with it all values of this moment
    return found


def read_names(frame: FrameType, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of names as the code in `frame` sees them."""
    local = frame.f_locals
    found = {name: local[name] if name in local else frame.f_globals.get(name) for name in names}
    if local is not frame.f_globals and sys.version_info < (3, 13):
        local.clear()
    return found


def write_variables(frame: FrameType, values: Mapping[str, Any], keep: Set[str] = frozenset()) -> None:
    """Set a function's own variables to these values, and unset the others, except those in `keep`."""
    code = frame.f_code
    own = {*code.co_varnames, *code.co_cellvars} - keep
    local = frame.f_locals
    if sys.version_info >= (3, 13):
        for name in own & values.keys():
            local[name] = values[name]  # a variable cannot be unbound there, only bound anew
        return
    for name in own:
        if name in values:
            local[name] = values[name]
        else:
            local.pop(name, None)
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(1))
    local.clear()


def made_inside(frame: FrameType, value: object) -> bool:
    """Return whether `value` is a closure over variables of the function in `frame`."""
    return isinstance(value, FunctionType) and bool(value.__closure__) and value.__code__ in frame.f_code.co_consts

"""The position of a run at a loop boundary: the frames from the cell to the loop whose next iteration is about to begin.

Each frame has to run rewritten code, in a call that can be made again. If a library's code is in between, the run cannot be resumed here,
but at the next boundary of an outer loop.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ...analysis.resume_points import CallPlace, Unit
from .iterable_kinds import has_begun, is_progress_bar
from .jump_path import DEFINED_AGAIN, PROGRESS
from .loop_iterators import Loop, WhileLoop
from .managed_blocks import Managed
from .position import FramePosition, LoopPosition, made_inside, read_variables
from .rewritten_code import Texts

_INNER = {
    "<listcomp>": "list comprehension",
    "<setcomp>": "set comprehension",
    "<dictcomp>": "dict comprehension",
    "<genexpr>": "generator expression",
}  # functions without names; Python 3.12 and later have some of these without functions
_CALLS = frozenset({"CALL", "CALL_FUNCTION_EX", "CALL_KW"})
_TRANSPARENT = (("decorate_context", "torch/utils/_contextlib.py"), ("inner", "contextlib.py"))  # they do nothing but call


class NoPlace(Exception):
    """The run cannot be resumed from here, for the reason in the message."""


@dataclass
class FrameLocation:
    """One frame: the places of its function, its present call (``None`` in the innermost frame), and the loops and managers around that."""

    frame: FrameType
    unit: Unit
    call: CallPlace | None
    loops: list[Loop | WhileLoop]
    managers: list[tuple[int, int, Managed]]

    @property
    def number(self) -> int:
        """The number of the place."""
        return self.loops[-1].place.number if self.call is None else self.call.number

    def position(self) -> FramePosition:
        """Return the position as plain data."""
        base = self.unit.first_number
        counts = tuple(LoopPosition(loop.place.number - base, loop.place.line, loop.count) for loop in self.loops)
        line = self.loops[-1].place.line if self.call is None else self.call.line
        return FramePosition(self.unit.filename, *self.unit.key, self.number - base, line, counts)

    def values(self) -> dict[str, Any]:
        """Return the function's variables and the states of its loops; the cell's variables are its namespace."""
        variables = self.frame.f_locals if self.unit.is_cell else read_variables(self.frame)
        walked = {name for loop in self.loops for name in loop.place.sources}
        bars = {name: value.n for name, value in variables.items() if is_progress_bar(value) and name not in walked and hasattr(value, "n")}
        values: dict[str, Any] = {PROGRESS: bars} if bars else {}
        if not self.unit.is_cell:
            values[DEFINED_AGAIN] = [name for name, value in variables.items() if made_inside(self.frame, value)]
            values |= {name: value for name, value in variables.items() if name not in values[DEFINED_AGAIN]}
        for loop in self.loops:
            values |= loop.state_dict(self.unit.first_number)
        for number, index, manager in self.managers:
            values |= manager.state_dict(index, number - self.unit.first_number)
        return values

    def check(self, running: Loop | WhileLoop) -> None:
        """Raise `NoPlace` if something here cannot be restored."""
        for loop in self.loops:
            why_not = loop.why_not(is_running=loop is running)
            if why_not:
                raise NoPlace(f"line {loop.place.line}: {why_not}")
        for *_, manager in self.managers:
            if why_not := manager.check():
                raise NoPlace(f"line {self.frame.f_lineno}: {why_not}")
        items = {id(loop.items) for loop in self.loops if isinstance(loop, Loop)}
        frame = self.frame
        for name, value in (frame.f_locals if self.unit.is_cell else read_variables(frame)).items():
            if has_begun(value) and id(value) not in items:
                raise NoPlace(f"line {frame.f_lineno}: `{name}` is a generator that has started")
            if made_inside(frame, value) and not self.unit.binds_again(name, self.number):
                raise NoPlace(f"line {frame.f_lineno}: `{name}` uses variables of {frame.f_code.co_name}() and is not made on the way")


def whereabouts(
    frame: FrameType | None,
    running: Loop | WhileLoop,
    texts: Texts,
    loop_of: Callable[[FrameType, int], Loop | WhileLoop | None],
    managers_of: Callable[[FrameType], list[tuple[int, int, Managed]]],
) -> list[FrameLocation]:
    """Return the position of the run, from the cell inwards.

    Parameters
    ----------
    frame : frame
        The frame of the `running` loop.
    loop_of : callable
        Returns the loop with a number that runs in a frame.
    managers_of : callable
        Returns the context managers that a frame has entered, by the number of the statement and the index in its header.
    """
    found: list[FrameLocation] = []
    while frame is not None:
        unit = texts.unit_of(frame.f_code)
        if unit is not None:
            call = _call_of(frame, unit) if found else None
            loops = [_known(loop_of(frame, number), frame) for number in (running.place.loops if call is None else call.loops)]
            found.append(FrameLocation(frame, unit, call, loops, managers_of(frame)))
            found[-1].check(running)
            if unit.is_cell:
                return found[::-1]
        elif not _is_transparent(frame.f_code):
            raise NoPlace(_outside(frame))
        frame = frame.f_back
    raise NoPlace("not called by the cell itself")


def loops_around(
    frame: FrameType | None,
    running: Loop | WhileLoop,
    texts: Texts,
    loop_of: Callable[[FrameType, int], Loop | WhileLoop | None],
) -> list[Loop | WhileLoop] | None:
    """Return the loops around the boundary of `running`, outermost first and itself last; ``None`` where a library's may be among them.

    The arguments are those of :func:`whereabouts`; here a frame may be in any kind of call.
    """
    found: list[Loop | WhileLoop] = []
    while frame is not None:
        unit = texts.unit_of(frame.f_code)
        if unit is not None:
            numbers = sorted(unit.loops) if found else running.place.loops
            # In the order of the text; of those in other branches none is running.
            found = [loop for number in numbers if (loop := loop_of(frame, number)) is not None] + found
            if unit.is_cell:
                return found
        elif not _is_transparent(frame.f_code):
            return None
        frame = frame.f_back
    return None


def call_without(function: Callable[..., Any], *_: Any, **__: Any) -> Any:
    """Call `function` without values for its parameters."""
    needed = [
        parameter
        for parameter in inspect.signature(function, follow_wrapped=False).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    named = [parameter.name for parameter in needed if parameter.kind is parameter.KEYWORD_ONLY]
    return function(*[None] * (len(needed) - len(named)), **dict.fromkeys(named))


def _known(loop: Loop | WhileLoop | None, frame: FrameType) -> Loop | WhileLoop:
    if loop is None:
        raise NoPlace(f"line {frame.f_lineno}: a loop around it was not seen to begin")
    return loop


def _is_transparent(code: CodeType) -> bool:
    return code is call_without.__code__ or any(code.co_name == name and code.co_filename.endswith(file) for name, file in _TRANSPARENT)


def _call_of(frame: FrameType, unit: Unit) -> CallPlace:
    """Return the present call of a frame."""
    code = frame.f_code
    offset = frame.f_lasti
    while offset > 0 and code.co_code[offset] == 0:  # what stands behind an instruction
        offset -= 2
    span = list(code.co_positions())[offset // 2]
    place = unit.calls.get(span) if None not in span else None  # type: ignore[arg-type]
    if place is None or dis.opname[code.co_code[offset]] not in _CALLS:
        raise NoPlace(f"line {frame.f_lineno}: not by a plain call")
    if place.why_not is not None:
        raise NoPlace(f"line {place.line}: {place.why_not}")
    return place


def _outside(frame: FrameType) -> str:
    name = frame.f_code.co_name
    where = f"line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}"
    if name.startswith("<") and name.endswith(">"):
        return f"{where}: inside a {_INNER.get(name, name[1:-1])}"
    return f"{where}: called by {name}(), which cannot be entered again"

"""The running loops and context managers, by frame, and the position of a run at a loop boundary."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Container
from types import CodeType, FrameType
from typing import Any

from .call_stack import FrameLocation, NoPlace, loops_around, whereabouts
from .loop_iterators import Loop, WhileLoop
from .managed_blocks import Managed
from .position import Position
from .rewritten_code import Texts


class LoopPlaces:
    """The running loops of one run.

    Parameters
    ----------
    texts : Texts
    boundaries : container of code
        Code of the functions in which a loop reaches a boundary.

    Attributes
    ----------
    running : Loop or WhileLoop, optional
        The loop that is at a boundary.
    active : dict
        Running loops, by frame and number.
    managers : dict
        Context managers, by frame, number of the statement and index in its header.
    most_active : int
        Number of loops from which on ended ones are searched for.
    why_not : str
        Why `position` was ``None`` the last time.
    """

    def __init__(self, texts: Texts, boundaries: Container[CodeType]) -> None:
        self._texts, self._boundaries = texts, boundaries
        self.running: Loop | WhileLoop | None = None
        self.active: dict[tuple[int, int], weakref.ref[Loop] | WhileLoop] = {}
        self.managers: dict[tuple[int, int, int], Managed] = {}
        self.most_active = 500
        self.why_not = ""

    def position(self) -> Position | None:
        """Return the position of the run at a boundary; ``None`` if it cannot be resumed there (`why_not` has the reason)."""
        try:
            return Position(tuple(place.position() for place in self._locations()))
        except NoPlace as error:
            self.why_not = str(error)
            return None

    def values(self) -> list[dict[str, Any]]:
        """Return the state of the frames of `position` beside the cell's namespace: variables of functions, and loops."""
        return [place.values() for place in self._locations()]

    def around(self) -> list[Loop | WhileLoop] | None:
        """Return the loops around a boundary, outermost first; ``None`` if not all are known."""
        frame, running = self._boundary_frame()
        if frame is None or running is None:
            return None
        return loops_around(frame, running, self._texts, self._loop_of)

    def _locations(self) -> list[FrameLocation]:
        frame, running = self._boundary_frame()
        if frame is None or running is None:
            raise NoPlace("no loop is about to begin an iteration")
        return whereabouts(frame, running, self._texts, self._loop_of, self._managers_of)

    def _boundary_frame(self) -> tuple[FrameType | None, Loop | WhileLoop | None]:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in self._boundaries:
            frame = frame.f_back
        return None if frame is None else frame.f_back, self.running

    def _loop_of(self, frame: FrameType, number: int) -> Loop | WhileLoop | None:
        entry = self.active.get((id(frame), number))
        return entry() if isinstance(entry, weakref.ref) else entry

    def _managers_of(self, frame: FrameType) -> list[tuple[int, int, Managed]]:
        return [(number, index, manager) for (owner, number, index), manager in self.managers.items() if owner == id(frame)]

    def register(self, frame: FrameType, loop: Loop) -> Loop:
        """Note that a loop runs in a frame."""
        if len(self.active) > self.most_active:
            self.forget_ended()
        self.active[id(frame), loop.place.number] = weakref.ref(loop)
        return loop

    def forget_ended(self) -> None:
        """Forget loops whose frames have ended."""
        running = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
        for key, entry in list(self.active.items()):
            if key[0] not in running or (isinstance(entry, weakref.ref) and entry() is None):
                del self.active[key]
        self.most_active = 2 * len(self.active) + 500

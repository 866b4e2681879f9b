"""Estimates how much of a cell is done, from the lengths of the loops around a training step.

Only training counts: the position is read at the first loop boundary after a step, so an evaluation loop changes nothing. Before the first
step, loops over this project's data sets count. With a loop of unknown length (a ``while``, a generator) there is no estimate.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader

from ...protocol import Extent, Message
from ...system import read_counters
from ..data.iterator_state import LoaderIterator
from ..resume.iterable_kinds import is_progress_bar
from ..resume.loop_iterators import Loop, WhileLoop
from ..resume.loops import Loops
from .observer import Observer

INTERVAL = 0.25
"""Seconds between two estimates: one takes some microseconds, which counts if steps take as little."""
_now = time.monotonic  # the clock of this rank: in a cell, `time.monotonic` asks rank 0
_MADE_OF_OTHERS = (enumerate, zip, map)


class ExtentMeter:
    """Reads the positions of the cell's loops at their boundaries."""

    def __init__(self, rank: int, loops: Loops, observer: Observer) -> None:
        self._rank, self._loops, self._observer = rank, loops, observer
        self._step = 0
        self._rows = read_counters.read().rows
        self._due = 0.0
        self._last: Extent | None = None

    def at_boundary(self) -> None:
        """Estimate, if a step was made since the last boundary."""
        step, now = self._observer.step, _now()
        if step == self._step and (step or now < self._due):
            return
        self._step = step
        if now < self._due:
            return
        self._due = now + INTERVAL
        if not step and not self._has_read():
            return
        around = self._loops.places.around()
        fraction = None if around is None else fraction_done(around)
        if fraction is not None:
            self._last = Extent(rank=self._rank, time=time.time(), fraction=fraction)

    def _has_read(self) -> bool:
        before, self._rows = self._rows, read_counters.read().rows
        return self._rows > before

    def drain(self) -> list[Message]:
        """Return a message if there is a new estimate."""
        last, self._last = self._last, None
        return [] if last is None else [last]


def fraction_done(around: Sequence[Loop | WhileLoop]) -> float | None:
    """Return the fraction of the outermost loop that is done when the innermost begins an iteration; ``None`` if not known."""
    fraction = 0.0
    for loop in reversed(around):
        total = _length(loop)
        if not total:
            return None
        begun = loop.count if loop is around[-1] else loop.count - 1
        fraction = (begun + fraction) / total
    return min(1.0, fraction) if around else None


def _length(loop: Loop | WhileLoop) -> int | None:
    if isinstance(loop, WhileLoop):
        return None
    if isinstance(loop.iterable, DataLoader) or is_progress_bar(loop.iterable):
        try:
            return len(loop.iterable)
        except TypeError:
            return None
    left = _left(loop.items)
    return None if left is None else loop.count + left


def _left(items: Any) -> int | None:
    """Return how many items an iterator has left, if it says so without running user code."""
    if type(items) is LoaderIterator:
        try:
            return len(items) - items.taken
        except TypeError:  # iterable data without a length
            return None
    if type(items) in _MADE_OF_OTHERS:
        parts = [_left(part) for part in items.__reduce__()[1] if hasattr(part, "__next__")]
        return min((part for part in parts if part is not None), default=None)
    if type(items).__module__ != "builtins":
        return None
    left = operator.length_hint(items, -1)
    return None if left < 0 else left

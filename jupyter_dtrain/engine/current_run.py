"""The run of this process: what is in force of it while its cell is run, in one record.

What takes the place of PyTorch's entry points, exchanges between ranks, and iterators that a snapshot has brought back have no argument by
which a run could reach them, so they look here. A process runs one cell at a time; outside of one, every part is ``None``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from torch.utils.data import DataLoader


class Clock(Protocol):
    """Where the time of the rank goes."""

    part: int
    """The part that goes on."""

    def switch(self, part: int) -> int:
        """Go over to a part of the time, and return the one before."""


class RankZeroBranches(Protocol):
    """Branches of the cell that rank 0 alone takes."""

    def line(self) -> int | None:
        """Return the line of such a branch in which the cell is, if it is in one."""

    def check(self) -> None:
        """Raise RuntimeError where it is in one."""


class Handlers(Protocol):
    """``try`` statements of the cell."""

    def here(self, frame: FrameType | None) -> bool:
        """Return whether `frame`, or one that it was called from, would catch an error."""


class ThreadTurns(Protocol):
    """Which thread may make a collective."""

    def check(self) -> None:
        """Wait until no other thread can make one; RuntimeError where another thread tries."""


class Loaders(Protocol):
    """What a run makes of loaders."""

    together: int
    """How many batches of a loader make one of the run's."""

    def go_on(self, original: Callable[[DataLoader[Any]], Any], cursor: Any, loader: DataLoader[Any], begin: Any) -> Any:
        """Return the batches of a loader that lacks those that were given out, where its sampler can leave them out.

        `cursor` is the `IteratorState` of the iteration. What makes the batches' iterator is given to `begin`, which calls it while random
        streams are as they were.
        """


@dataclass(slots=True)
class CurrentRun:
    """The parts of the run that are in force."""

    timing: Clock | None = None
    rank0_branches: RankZeroBranches | None = None
    handlers: Handlers | None = None
    turns: ThreadTurns | None = None
    loaders: Loaders | None = None

    @contextmanager
    def having(self, **parts: object) -> Iterator[None]:
        """Let `parts`, by their names, be in force until the end of the ``with`` block."""
        for name, part in parts.items():
            setattr(self, name, part)
        try:
            yield
        finally:
            for name in parts:
                setattr(self, name, None)


current_run = CurrentRun()

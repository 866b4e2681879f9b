"""The parts of the current run, in one record for this process.

Patches of PyTorch's entry points, exchanges between ranks, and iterators restored from a snapshot have no argument that could pass the run,
so they look it up here. A process runs one cell at a time; outside of a cell, every part is ``None``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from torch.utils.data import DataLoader


class Clock(Protocol):
    """Measures where the rank's time goes."""

    part: int
    """The part that is being timed."""

    def switch(self, part: int) -> int:
        """Start timing `part`, and return the part before."""


class RankZeroBranches(Protocol):
    """Branches of the cell that only rank 0 takes."""

    def line(self) -> int | None:
        """Return the line of the rank-0 branch that the cell is in; ``None`` if it is in none."""

    def check(self) -> None:
        """Raise RuntimeError if the cell is in such a branch."""


class Handlers(Protocol):
    """``try`` statements of the cell."""

    def here(self, frame: FrameType | None) -> bool:
        """Return whether `frame`, or one of its callers, would catch an error."""


class ThreadTurns(Protocol):
    """Decides which thread may run a collective."""

    def check(self) -> None:
        """Wait until no other thread can run a collective.

        Raises
        ------
        RuntimeError
            Another thread tries to.
        """


class Loaders(Protocol):
    """A run's access to loaders."""

    together: int
    """Number of a loader's batches that form one batch of the run."""

    def draws_late(self, loader: DataLoader[Any]) -> bool:
        """Return whether loading is known to draw random numbers, though not for the first batch."""

    def go_on(self, original: Callable[[DataLoader[Any]], Any], cursor: Any, loader: DataLoader[Any], begin: Any) -> Any:
        """Return the remaining batches of a loader that skips those given out, if its sampler can skip them.

        `cursor` is the `IteratorState` of the iteration. `begin` receives the function that makes the batches' iterator, and calls it with
        random streams as they were.
        """


@dataclass(slots=True)
class CurrentRun:
    """The parts of the current run."""

    timing: Clock | None = None
    rank0_branches: RankZeroBranches | None = None
    handlers: Handlers | None = None
    turns: ThreadTurns | None = None
    loaders: Loaders | None = None

    @contextmanager
    def having(self, **parts: object) -> Iterator[None]:
        """Set `parts` by name until the end of the ``with`` block."""
        for name, part in parts.items():
            setattr(self, name, part)
        try:
            yield
        finally:
            for name in parts:
                setattr(self, name, None)


current_run = CurrentRun()

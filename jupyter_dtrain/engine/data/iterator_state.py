"""Where iterations over data loaders are, so that they can go on in another process.

A loader's order of samples is drawn when an iteration begins, from random streams whose states are noted then. To go on,
the streams get those states for a moment, the same order is drawn, and what was given out is skipped on the batches of
*indices*: no sample is loaded for it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ..timing import DATA, Counted
from .iteration_places import IteratorState, SourceState, go_on, passes_on


class LoaderIterator:
    """The iterator over a loader that the cell holds.

    Parameters
    ----------
    batches : iterator, optional
        The batches that come now; ``None``: the iteration is gone on with when it is asked for a batch.
    pretended : int
        For so many batches, which were given out before, only the number matters: while a loop's iterable is made again.
    log : IteratorLog, optional
        Who is told if they have to be loaded again after all.
    """

    def __init__(
        self, cursor: IteratorState, batches: Batches | Iterator[Any] | None = None, *, pretended: int = 0, log: IteratorLog | None = None
    ) -> None:
        self._cursor = cursor
        self._batches = batches
        self._pretended = pretended
        self._log = log

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        cursor = self._cursor
        if self._pretended:
            if passes_on(sys._getframe(1).f_code.co_filename):
                self._pretended -= 1
                return None
            # The user's own code wants to see the batches.
            self._pretended, cursor.taken, cursor.finished = 0, 0, False
            if self._log is not None:
                self._log.put_back(SourceState(cursor.loader))
            self._batches = go_on(cursor)
        if cursor.finished:
            raise StopIteration
        if self._batches is None:
            present = SourceState(cursor.loader)
            self._batches = go_on(cursor)
            present.set()
        if cursor.first is None:
            cursor.first = SourceState(cursor.loader)
        try:
            with Counted(DATA):
                batch = next(self._batches)
        except StopIteration:
            cursor.finished = True
            raise
        except Exception:
            cursor.taken += 1  # the next one is that behind it
            raise
        cursor.taken += 1
        return batch

    @property
    def taken(self) -> int:
        """Batches that were given out."""
        return self._cursor.taken

    def __len__(self) -> int:
        return len(self._cursor.loader) if self._batches is None else len(self._batches)  # type: ignore[arg-type]  # those of loaders have one

    def __reduce__(self) -> Any:
        return LoaderIterator, (copy.copy(self._cursor),)


Begin = Callable[[Callable[[], Any]], Any]


class Batches(Protocol):
    """Batches of a loader as a run gives them to the cell."""

    def __next__(self) -> Any:
        """Return the next one."""

    def __len__(self) -> int:
        """Return how many there are from the beginning."""


class IteratorLog(Protocol):
    """Who is told of iterations over loaders."""

    def note(self, cursor: IteratorState) -> None:
        """Take note of an iteration that begins."""

    def restored_state(self) -> IteratorState | None:
        """Return where the iteration that begins was when a snapshot was taken, if it is one of then."""

    def put_back(self, moment: SourceState) -> None:
        """Make `moment` the present one when all is as it was."""

"""Iterations over data loaders that can resume in another process.

A loader's sample order is drawn when an iteration begins, from random streams whose states are saved then. To resume, the streams are set
to those states temporarily, the same order is drawn, and the batches of *indices* already used are skipped: no sample is loaded for them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ..timing import DATA, Counted
from .iteration_places import IteratorState, go_on, passes_on
from .source_state import SourceState


class LoaderIterator:
    """The iterator over a loader that the cell holds.

    Parameters
    ----------
    cursor : IteratorState
    batches : iterator, optional
        The remaining batches; ``None``: the iteration resumes when a batch is requested.
    pretended : int
        Number of batches, given out before a resume, that are only counted while the loop's iterable is rebuilt.
    log : IteratorLog, optional
        Notified if these batches must be loaded after all.
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
            # User code consumes these batches: load them again from the start.
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
            cursor.taken += 1  # a failed batch counts as given out
            raise
        cursor.taken += 1
        return batch

    @property
    def taken(self) -> int:
        """Number of batches given out."""
        return self._cursor.taken

    def __len__(self) -> int:
        return len(self._cursor.loader) if self._batches is None else len(self._batches)  # type: ignore[arg-type]  # iterators of loaders have a length

    def __reduce__(self) -> Any:
        return LoaderIterator, (copy.copy(self._cursor),)


Begin = Callable[[Callable[[], Any]], Any]


class Batches(Protocol):
    """A loader's batches as a run gives them to the cell."""

    def __next__(self) -> Any:
        """Return the next batch."""

    def __len__(self) -> int:
        """Return the total number of batches, from the beginning."""


class IteratorLog(Protocol):
    """Tracks iterations over loaders."""

    def note(self, cursor: IteratorState) -> None:
        """Record an iteration that begins."""

    def restored_state(self) -> IteratorState | None:
        """Return the saved position of the iteration that begins, if a snapshot contains it."""

    def put_back(self, moment: SourceState) -> None:
        """Restore `moment` after everything else has been restored."""

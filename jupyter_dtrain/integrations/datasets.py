"""Where a streaming data set of Hugging Face's is: after how many rows of which file, so that a run goes on there and reads nothing again.

Those that read their files in order, row by row, go on exactly. Buffers that shuffle are not in their state, and batches of ``map`` and
sources that take turns can lose or repeat rows (datasets#7901): of such a one no place is known here, and what it has given is read again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from .base import Integration, Position

_IN_ORDER = frozenset(
    f"{name}Iterable"
    for name in (
        *("Examples", "ArrowExamples", "RebatchedArrowExamples", "SelectColumns"),
        *("MappedExamples", "FilteredExamples", "FormattedExamples", "SkipExamples", "TakeExamples"),
    )
)
_ATTRIBUTES = ("_ex_iterable", "_state_dict", "_starting_state_dict", "_epoch")


class _Place(Position):
    """The place of the iteration that begins now over a data set. Of two at once none is known: they write to one state."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._state: Any = None  # the library's own, which it writes to
        self._is_alone = True

    def state_dict(self) -> Any:
        """Return it; ``None`` where another iteration has begun since."""
        is_known = self._is_alone and self._state is not None and self._dataset._state_dict is self._state
        return self._dataset.state_dict() if is_known else None

    def load_state_dict(self, state: Any) -> bool:
        """Let the iteration begin there, if it is of the same epoch."""
        if state["epoch"] != self._dataset.epoch:
            return False  # the library would begin with the first row and say nothing
        self._dataset.load_state_dict(state)
        return True

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Let iterations after this one begin with the first row: the library would begin all of the epoch where this one does."""
        for other in _alive:
            if other._dataset is self._dataset:
                self._is_alone = other._is_alone = False
        _alive.add(self)
        try:
            yield
            self._state = self._dataset._state_dict
        finally:
            self._dataset._starting_state_dict = None


_alive: WeakSet[_Place] = WeakSet()  # of iterations that have begun and not ended


def is_in_order(dataset: Any) -> bool:
    """Return whether `dataset` gives its rows as they are stored, one by one."""
    if dataset._distributed is not None or dataset._starting_state_dict is not None:
        return False
    source = dataset._ex_iterable
    while source is not None:
        if type(source).__name__ not in _IN_ORDER or getattr(source, "batched", False):
            return False
        source = getattr(source, "ex_iterable", None)
    return True


class Datasets(Integration):
    """Streams in order say where they are."""

    objects_go_along = True

    def position(self, dataset: object) -> Position | None:
        """Return where a stream is."""
        kind = getattr(sys.modules.get("datasets"), "IterableDataset", None)
        if kind is None or not isinstance(dataset, kind) or any(not hasattr(dataset, name) for name in _ATTRIBUTES):
            return None
        return _Place(dataset) if is_in_order(dataset) else None


INTEGRATION = Datasets()

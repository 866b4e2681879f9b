"""Save the position of a Hugging Face streaming data set (file and row), so that a run resumes there without reading rows again.

Streams that read their files in order, row by row, resume exactly. The state of a stream does not include shuffle buffers, and batched
``map`` and interleaved sources can lose or repeat rows (datasets#7901). For these no position is known, and their rows are read again.
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
    """Position of an iteration that begins now. Unknown with two iterations at once, as they share the data set's state."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._state: Any = None  # the library's state dict, which it updates in place
        self._is_alone = True

    def state_dict(self) -> Any:
        """Return the position; ``None`` if another iteration has begun since."""
        is_known = self._is_alone and self._state is not None and self._dataset._state_dict is self._state
        return self._dataset.state_dict() if is_known else None

    def load_state_dict(self, state: Any) -> bool:
        """Start the iteration at `state`, if it is of the same epoch."""
        if state["epoch"] != self._dataset.epoch:
            return False  # the library would silently start with the first row
        self._dataset.load_state_dict(state)
        return True

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Let later iterations start with the first row: the library would start all of this epoch at the loaded position."""
        for other in _alive:
            if other._dataset is self._dataset:
                self._is_alone = other._is_alone = False
        _alive.add(self)
        try:
            yield
            self._state = self._dataset._state_dict
        finally:
            self._dataset._starting_state_dict = None


_alive: WeakSet[_Place] = WeakSet()  # positions of running iterations


def is_in_order(dataset: Any) -> bool:
    """Return whether `dataset` yields its rows in stored order, one by one."""
    if dataset._distributed is not None or dataset._starting_state_dict is not None:
        return False
    source = dataset._ex_iterable
    while source is not None:
        if type(source).__name__ not in _IN_ORDER or getattr(source, "batched", False):
            return False
        source = getattr(source, "ex_iterable", None)
    return True


class Datasets(Integration):
    """Positions of streams that read in order."""

    objects_go_along = True

    def position(self, dataset: object) -> Position | None:
        """Return the position of a stream."""
        kind = getattr(sys.modules.get("datasets"), "IterableDataset", None)
        if kind is None or not isinstance(dataset, kind) or any(not hasattr(dataset, name) for name in _ATTRIBUTES):
            return None
        return _Place(dataset) if is_in_order(dataset) else None


INTEGRATION = Datasets()

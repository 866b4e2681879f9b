"""The state of an iterable before a loop over it began, so that a resumed run iterates in the same order.

Loaders, samplers and streams of the user or of a library may draw their order when an iteration begins: from random streams, from a
generator that they hold, by an epoch that they count, from a list that they shuffle in place. A snapshot has these as they are in the
middle of the iteration. So the state of an iterable is recorded when an iteration begins (:mod:`..data.held_state`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...capture.random_state import RandomState
from ..data.held_state import DATA, HeldState

_LIBRARIES = frozenset(
    ("builtins", "collections", "pandas", "pathlib", "torch", "tqdm")
)  # top packages of classes whose iterations change nothing of theirs


class Beginning:
    """The states of random streams and of iterables at one moment.

    Parameters
    ----------
    iterables : iterable of object
    """

    def __init__(self, iterables: Iterable[object] = ()) -> None:
        self._iterables = [value for value in iterables if begins_its_own_way(value)]
        self._random_state = RandomState.now()
        self._held = HeldState(self._iterables)

    def set(self) -> None:
        """Restore these states."""
        self._random_state.set()
        self._held.set()

    def now(self) -> Beginning:
        """Return the present states of the same objects."""
        return Beginning(self._iterables)


def begins_its_own_way(value: object) -> bool:
    """Return whether an iteration over `value` may change its state: it is of a class of the user, or of a library for loaders."""
    kind: Any = type(value)
    own = kind.__module__.partition(".")[0] not in _LIBRARIES
    return own and hasattr(kind, "__iter__") and not hasattr(kind, "__next__") and not isinstance(value, DATA)

"""The engines of a run that somebody wants restarted: until the run does it, or leaves it to whoever comes after it."""

from __future__ import annotations

import threading
from bisect import bisect
from collections.abc import Iterable

from ..errors import UsageError


class Restarts:
    """Ranks whose engines are to be others. Any thread may call any of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranks: set[int] = set()
        self._is_open = True

    def order(self, rank: int) -> None:
        """Let the engine of `rank` be restarted; a `UsageError`: the run is over, and nobody looks any more."""
        with self._lock:
            if not self._is_open:
                raise UsageError("The run has just ended: try again.")
            self._ranks.add(rank)

    @property
    def ranks(self) -> list[int]:
        """Those whose engines are still the old ones."""
        with self._lock:
            return sorted(self._ranks)

    def take(self, lost: Iterable[int]) -> bool:
        """Know that the ranks `lost` get other engines; return whether all of them were to."""
        with self._lock:
            wanted = self._ranks.issuperset(lost)
            self._ranks.difference_update(lost)
            return wanted

    def let_go(self, missing: Iterable[int]) -> None:
        """Know that the run goes on without the ranks `missing`: those behind them have moved up."""
        with self._lock:
            gone = sorted(missing)
            self._ranks = {rank - bisect(gone, rank) for rank in self._ranks.difference(gone)}

    def close(self) -> list[int]:
        """Take no more orders; return the ranks to which the run has not come."""
        with self._lock:
            self._is_open = False
            return sorted(self._ranks)

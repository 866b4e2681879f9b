"""Which calls are checked: the first of each kind, and later ones at growing distances, within a fraction of the run's time.

All ranks decide alike, by numbers that they have exchanged at the last check.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...options import Verify

PART = 0.01
"""Largest fraction of the run's time for checks after the first."""
FAR = 1 << 62


@dataclass(slots=True)
class Turn:
    """The checks of one kind of call: `calls` were made, and call number `due` is the next to check.

    The last check without a finding was of call `last`, in step `checked`.
    """

    calls: int = 0
    due: int = 1
    since: float = 0.0
    last: int = 0
    checked: int = 0


class Schedule:
    """Decides when to check.

    Parameters
    ----------
    mode : {"auto", "always", "first"}
    """

    def __init__(self, mode: Verify) -> None:
        self._mode = mode
        self._spent = 0.0  # by checks beyond the first ones, on the slowest rank each
        self._began = time.monotonic()

    def note(self, turn: Turn) -> bool:
        """Count a call, and return whether to check it."""
        turn.calls += 1
        return turn.calls >= turn.due

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._began

    def follow(self, turn: Turn, of_ranks: Sequence[tuple[float, float]]) -> None:
        """Decide when the next check is.

        Parameters
        ----------
        turn : Turn
        of_ranks : sequence of (float, float)
            For each rank, the seconds that the check has taken, and those since the run began.
        """
        cost, now = max(seconds for seconds, _ in of_ranks), max(at for _, at in of_ranks)
        if self._mode == "always":
            turn.due = turn.calls + 1
            return
        if self._mode == "first":
            turn.due = FAR
            return
        if turn.calls > 1:
            self._spent += cost
        # After the first call nothing is known of how long one takes.
        per_call = (now - turn.since) / turn.calls if turn.calls > 1 else None
        affordable = (self._spent + cost) / PART - now
        if affordable <= 0:
            turn.due = 2 * turn.calls
        elif per_call:
            turn.due = max(2 * turn.calls, turn.calls + int(affordable / per_call) + 1)
        else:
            turn.since = now
            turn.due = max(2, int(affordable / max(cost, 1e-4)) + 1)

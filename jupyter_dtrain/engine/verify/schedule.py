"""Which calls are checked: the first of each kind or a later one, and others at growing distances, within a fraction of the run's time.

All ranks decide alike, by numbers that they exchange.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psutil
import torch

from ...options import Verify
from ...system.resources import memory
from ..staging import SPARE

PART = 0.01
"""Largest fraction of the run's time for checks; with ``first``, for those after the first."""
FAR = 1 << 62
ASKED_FIRST = 32
"""With ``auto``, number of the call of each kind before which the ranks first look whether they can afford to check it."""
LOOKING = 0.1
"""Seconds that the search for what a call can change is taken to last, as long as no check has been measured."""


@dataclass(slots=True)
class Turn:
    """The checks of one kind of call: `calls` were made, and call number `due` is the next to check.

    The last check without a finding was of call `last`, in step `checked`. With ``auto``, the first check is made when it is within the
    budget (`is_open`), which takes the `seconds` that a call lasts.
    """

    calls: int = 0
    due: int = 1
    since: float = 0.0
    last: int = 0
    checked: int = 0
    is_open: bool = True
    seconds: float | None = None


class Estimate(NamedTuple):
    """A rank's estimate of a first check: its seconds, those since the run began, and whether the rank can make it."""

    cost: float
    now: float
    is_possible: bool


class Schedule:
    """Decides when to check.

    Parameters
    ----------
    mode : {"auto", "always", "first"}
    world_size : int
        Number of ranks, and how many times larger the full batch is than a shard.
    """

    def __init__(self, mode: Verify, *, world_size: int = 1) -> None:
        self._mode, self._world_size = mode, world_size
        self._spent = 0.0  # by checks beyond the first ones, on the slowest rank each
        self._began = time.monotonic()

    @property
    def is_asked_for(self) -> bool:
        """Whether the user has asked for checks, and is told what cannot be checked."""
        return self._mode != "auto"

    def new_turn(self, *, due: int = 1) -> Turn:
        """Return the turn of a new kind of call, of which number `due` is the first to check if nothing else decides."""
        if self.is_asked_for:
            return Turn(due=due)
        return Turn(due=max(due, ASKED_FIRST), since=self.now(), is_open=False)

    def note(self, turn: Turn) -> bool:
        """Count a call, and return whether to check it."""
        turn.calls += 1
        return turn.calls >= turn.due

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._began

    def estimate(self, cost: float, *, is_allowed: bool = True) -> Estimate:
        """Return this rank's estimate of a check that takes `cost` seconds beside the search for what the call can change.

        It is possible if the rank `is_allowed` to make it, and if the full batch fits into memory.
        """
        return Estimate(cost + LOOKING, self.now(), is_allowed and _fits(self._world_size))

    def opens(self, turn: Turn, of_ranks: Sequence[Estimate]) -> bool:
        """Return whether the first check of a kind is made now; if not, decide after which call to ask again."""
        cost, now = max(estimate.cost for estimate in of_ranks), max(estimate.now for estimate in of_ranks)
        turn.is_open = self._spent + cost <= PART * now and all(estimate.is_possible for estimate in of_ranks)
        if not turn.is_open:
            turn.due = 2 * turn.calls
        return turn.is_open

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


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


_AT_START = _resident()  # with PyTorch loaded, and before any cell


def _fits(times: int) -> bool:
    """Return whether there is memory for `times` what the run has taken so far, on each of as many ranks."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        allocated = torch.cuda.memory_allocated()
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - allocated
        return times * (torch.cuda.max_memory_allocated() - allocated) < free
    there = memory()
    return times * times * max(_resident() - _AT_START, 0) < there.left - SPARE * there.total

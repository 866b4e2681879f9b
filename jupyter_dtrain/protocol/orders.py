"""Orders: what the notebook's kernel tells engines to do while a cell runs, over ipyparallel's control channel."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Message


@dataclass(frozen=True, kw_only=True)
class Order(Message):
    """Base of all orders. If all ranks must follow an order at the same step, they agree on the step (``engine/control.py``)."""


@dataclass(frozen=True, kw_only=True)
class Stop(Order):
    """Stop at the end of a step."""


@dataclass(frozen=True, kw_only=True)
class StopToReturn(Order):
    """Stop at the end of a step, as the run will resume from a snapshot."""


@dataclass(frozen=True, kw_only=True)
class Pause(Order):
    """Wait at the end of a step. `number` counts the pauses of a run."""

    number: int


@dataclass(frozen=True, kw_only=True)
class EndPause(Order):
    """Continue, as the pause `number` is over."""

    number: int


@dataclass(frozen=True, kw_only=True)
class TakeSnapshot(Order):
    """Take the snapshot `number` at the top of a loop, as soon as possible."""

    number: int


@dataclass(frozen=True, kw_only=True)
class SetShares(Order):
    """Divide batches in proportion to `speeds`, one for each rank. `number` counts such orders."""

    number: int
    speeds: list[float]


@dataclass(frozen=True, kw_only=True)
class TellStanding(Order):
    """Report the user's line that the rank is at, as a `Standing`."""


@dataclass(frozen=True, kw_only=True)
class LeaveGroup(Order):
    """Close the connections to other ranks, and wait for nothing of theirs, as engines on other hosts are lost."""


@dataclass(frozen=True, kw_only=True)
class ReturnResults(Order):
    """Return what the cell has made so far, as it does not end."""


ORDERS: tuple[type[Order], ...] = (Stop, StopToReturn, Pause, EndPause, TakeSnapshot, SetShares, TellStanding, LeaveGroup, ReturnResults)

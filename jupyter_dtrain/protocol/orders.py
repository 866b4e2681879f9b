"""Orders: what the notebook's kernel tells engines while a cell runs, over ipyparallel's control channel."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Message


@dataclass(frozen=True, kw_only=True)
class Order(Message):
    """Base of all orders. One that all ranks are to follow at the same step, they agree on (``engine/control.py``)."""


@dataclass(frozen=True, kw_only=True)
class Stop(Order):
    """Stop at the end of a step."""


@dataclass(frozen=True, kw_only=True)
class StopToReturn(Order):
    """Stop at the end of a step: the run goes on from a snapshot."""


@dataclass(frozen=True, kw_only=True)
class Pause(Order):
    """Wait at the end of a step. `number` counts the pauses of a run."""

    number: int


@dataclass(frozen=True, kw_only=True)
class EndPause(Order):
    """Go on: the pause `number` is over."""

    number: int


@dataclass(frozen=True, kw_only=True)
class TakeSnapshot(Order):
    """Take the snapshot `number` at the top of a loop, as soon as possible."""

    number: int


@dataclass(frozen=True, kw_only=True)
class SetShares(Order):
    """Share out batches in proportion to `speeds`, of each rank. `number` counts such orders."""

    number: int
    speeds: list[float]


@dataclass(frozen=True, kw_only=True)
class TellStanding(Order):
    """Tell which of the user's lines the rank is at: answered by a `Standing`."""


@dataclass(frozen=True, kw_only=True)
class LeaveGroup(Order):
    """End the connections to other ranks: a host is lost, whose silence would let them wait."""


@dataclass(frozen=True, kw_only=True)
class ReturnResults(Order):
    """Return what the cell has made so far: it does not end."""


ORDERS: tuple[type[Order], ...] = (Stop, StopToReturn, Pause, EndPause, TakeSnapshot, SetShares, TellStanding, LeaveGroup, ReturnResults)

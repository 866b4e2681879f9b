"""Events of a run besides those that engines tell: what becomes of its ranks, for whoever has subscribed to them on its bus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RankShown:
    """A rank has shown something: kind and content of the message. Published on the client's IO thread, or when the run has ended."""

    rank: int
    kind: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Interrupted:
    """There was a first keyboard interrupt, and the ranks were asked to stop."""


@dataclass(frozen=True)
class AllPaused:
    """All ranks wait in a pause."""


@dataclass(frozen=True, kw_only=True)
class RanksChanged:
    """Engines have been replaced, or are fewer or more."""

    world_size: int


@dataclass(frozen=True, kw_only=True)
class WentBack:
    """The run has gone back to a step, while no rank is at work."""

    step: int

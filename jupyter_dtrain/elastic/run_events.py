"""Events on a run's bus that engines do not send: what becomes of its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RankShown:
    """A rank has shown output: kind and content of the message. Published on the client's IO thread, or after the run has ended."""

    rank: int
    kind: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Interrupted:
    """The first keyboard interrupt has come, and the ranks were asked to stop."""


@dataclass(frozen=True)
class AllPaused:
    """All ranks wait in a pause."""


@dataclass(frozen=True, kw_only=True)
class RanksChanged:
    """Engines have been replaced, or their number has changed."""

    world_size: int


@dataclass(frozen=True, kw_only=True)
class WentBack:
    """The run has gone back to `step`, while no rank is at work."""

    step: int

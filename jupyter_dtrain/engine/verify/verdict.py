"""The verdict on a checked call of a model, from what each rank has seen: what differs from the call on the full batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..rng.streams import OtherStreams
from ..tensor.redistribute import Exchange
from .frozen import Freezer, Frozen, apart, as_tensor, sums_are_apart
from .gradient_probes import Projections, differ
from .noted_state import Changes, StateBefore

RESULT, GRADIENTS = "what it returns", "its gradients"


@dataclass
class WholeCall:
    """The results of a call on the full batch."""

    results: list[Any] = field(default_factory=list)
    changes: Changes = field(default_factory=dict)
    gradients: Projections | None = None
    streams: tuple[bytes, OtherStreams] | None = None
    has_drawn: bool = False
    error: Exception | None = None
    given_up: str = ""


@dataclass
class SeenCall:
    """The results of a rank's checked call, sent to the other ranks."""

    different: str = ""
    failed: bool = False
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: Projections | None = None
    given_up: str = ""


def differs_here(leaves: list[Any], others: OtherStreams, whole: WholeCall, before: StateBefore, sums: dict[str, torch.Tensor]) -> str:
    """Return what differs from the full batch on this rank; empty if nothing does."""
    freezer = Freezer({})
    if len(leaves) != len(whole.results):
        return RESULT
    for number, (expected, leaf) in enumerate(zip(whole.results, leaves, strict=True)):
        if apart(expected, freezer.frozen(leaf), sums, f"result {number}"):
            return RESULT
    changes = before.changes()
    for key in dict.fromkeys((*whole.changes, *changes)):
        where = (whole.changes.get(key) or changes[key])[0]
        if key not in whole.changes or key not in changes or apart(whole.changes[key][1], changes[key][1], sums, f"{key}"):
            return f"`{where.replace('`', '')}`"
    return "" if whole.streams is None or others.are(whole.streams[1]) else "the random numbers it draws"


def verdict(of_ranks: list[SeenCall], whole: WholeCall) -> str:
    """Return what differs, equal on all ranks. Collective."""
    if any(of_rank.given_up for of_rank in of_ranks):
        return ""
    if found := next((of_rank.different for of_rank in of_ranks if of_rank.different), ""):
        return found
    wholes: dict[str, Frozen] = {f"result {number}": result for number, result in enumerate(whole.results)}
    wholes |= {f"{key}": value for key, (_, value) in whole.changes.items()}
    gradients = [of_rank.gradients for of_rank in of_ranks if of_rank.gradients is not None]
    found = ""
    if name := sums_are_apart([of_rank.sums for of_rank in of_ranks], lambda name: as_tensor(wholes.get(name))):
        found = RESULT if name.startswith("result") else "what it keeps"
    elif whole.gradients is not None and len(gradients) == len(of_ranks):
        found = GRADIENTS if differ(whole.gradients, gradients, _dtype(whole)) else ""
    if gradients or any(of_rank.sums for of_rank in of_ranks):  # where rounding might decide, all follow the first
        found = Exchange.objects(found)[0]
    return found


def _dtype(whole: WholeCall) -> torch.dtype:
    kinds = [result.dtype for result in whole.results if isinstance(result, torch.Tensor) and result.is_floating_point()]
    return min(kinds, key=lambda kind: kind.itemsize) if kinds else torch.float32

"""Predict the memory of a pipeline stage's engine, when activations go from stage to stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .live_bytes import StepMemory
from .step_work import AtomCall


class StageMemory(NamedTuple):
    """Bytes of a stage.

    `share`: its share of the model's parameters. `largest`: its largest block or layer. `piece`: the most bytes of gradients that one piece
    of a backward pass returns. `passing`: activations and temporary tensors as the backward pass begins, without gradients.
    """

    share: float
    largest: int
    piece: int
    passing: int


def stages_of(step: StepMemory, parts: int, samples: int) -> list[StageMemory]:
    """Return the memory of each of `parts` stages, for `samples` of each engine of a group.

    A stage computes its blocks and layers for all engines of the group and keeps their inputs and outputs. All else is of its own samples.
    """
    stage_of = step.stages(parts)
    num_stages = max(stage_of, default=0) + 1
    scale = samples / max(step.work.samples, 1)
    kept, given = [0.0] * num_stages, [0.0] * num_stages
    for call in step.work.atoms:
        if call.group >= 0:
            kept[stage_of[call.group]] += call.kept * scale
            given[stage_of[call.group]] += call.given * scale
    found = []
    for stage in range(num_stages):
        sizes = [size for size, of in zip(step.groups, stage_of, strict=True) if of == stage]
        passing = step.ungraded + parts * kept[stage] - sum(kept) + (parts - 1) * given[stage]
        piece = _largest_piece(step.groups, stage_of, stage, step.work.atoms)
        found.append(StageMemory(sum(sizes) / max(sum(step.groups), 1), max(sizes), piece, int(passing)))
    return found


def _largest_piece(groups: Sequence[int], stage_of: Sequence[int], stage: int, atoms: Sequence[AtomCall]) -> int:
    """Return the bytes of the largest part that a stage computes at once: a block or a layer, or all those of an ``nn.Sequential``."""
    by_chain: dict[int, set[int]] = {}
    for index, call in enumerate(atoms):
        if call.group >= 0 and stage_of[call.group] == stage:
            by_chain.setdefault(call.chain if call.chain >= 0 else -1 - index, set()).add(call.group)
    return max((sum(groups[group] for group in piece) for piece in by_chain.values()), default=0)

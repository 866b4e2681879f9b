"""Compute the bytes that an engine reads from others in a step, in closed form, for the engine on one host that reads most.

An all-reduce of *b* bytes over *n* engines is read in two halves, ``2 (n - 1) / n · b``: each engine adds up an *n*-th and reads the sums
of the others (:mod:`..engine.comm.shared_memory`). Global-view operations of the cell, BatchNorm's statistics and control messages are not
counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..strategies import Divided, StrategyInfo
from .live_bytes import StepMemory
from .model_cut import loads_of
from .step_work import AtomCall

GROUPED = 1 << 21
"""Bytes of small gradients that share one exchange, and of one piece of a large gradient."""


class Exchange(NamedTuple):
    """Bytes that an engine reads from others in a step, and how often it waits for them."""

    num_bytes: int
    meetings: int

    def __add__(self, other: tuple[int, ...]) -> Exchange:  # type: ignore[override]  # of figures
        return Exchange(self[0] + other[0], self[1] + other[1])


NOTHING = Exchange(0, 0)


def summed(num_bytes: float, engines: int) -> Exchange:
    """Return the cost of an all-reduce over `engines`."""
    pieces = -(-int(num_bytes) // GROUPED)
    return Exchange(int(2 * (engines - 1) / engines * num_bytes), pieces * (1 if engines == 2 else 2)) if engines > 1 else NOTHING


def read(num_bytes: float, engines: int, *, meetings: int = 0) -> Exchange:
    """Return the cost of an all-gather of equal shards of `engines`."""
    return Exchange(int((engines - 1) / engines * num_bytes), meetings)


def exchanged(step: StepMemory, info: StrategyInfo, engines: int, groups: int, samples: float, *, by_columns: bool) -> Exchange:
    """Return the cost of a step's communication under a strategy.

    Parameters
    ----------
    step : StepMemory
        Its work is that of `step.work.samples` samples.
    engines, groups : int
        Number of engines, and of groups among them that each hold the full model.
    samples : float
        Samples of a global batch.
    by_columns : bool
        Whether the strategy shards only large linear layers.
    """
    if engines == 1:
        return NOTHING
    scale = samples / max(step.work.samples, 1)
    if by_columns:
        return _by_columns(step, engines, groups, scale / groups)
    if info.by_blocks:
        return _by_blocks(step, engines, groups, scale)
    work = step.work
    if Divided.PARAMETERS in info.divides:
        large, small = work.large, step.gradients - work.large
        parts, pieces = engines // groups, -(-large // GROUPED) + work.units
        found = read(work.fetched, parts) + read(large, parts, meetings=pieces) + summed(small, engines)
        if groups > 1:  # gradients, and the parameters that the other groups have updated
            found += read(large / parts, groups, meetings=pieces) + read(large / parts, groups)
        return found
    found = summed(step.gradients, engines)
    if Divided.OPTIMIZER_STATE in info.divides:
        loads = [0] * engines
        for size in sorted(step.sizes, reverse=True):
            loads[loads.index(min(loads))] += size
        found += (sum(loads) - min(loads), -(-max(loads) // GROUPED))
    return found


def _by_columns(step: StepMemory, engines: int, groups: int, scale: float) -> Exchange:
    """Return the cost of gathering or summing outputs within a group, and of reducing gradients over the groups."""
    parts, found = engines // groups, NOTHING
    if parts > 1:
        for call in step.work.linears:
            if not call.is_divided(engines):
                continue
            if call.place != "second":  # the gradient with respect to its input stays sharded
                found += summed(call.given * scale if call.is_given_gradient else 0, parts)
            if call.place in ("second", "heads"):
                found += summed(call.returned * scale, parts)
            elif not call.place:
                found += read(call.returned * scale, parts, meetings=1)
    layers = [layer for layer in step.layers if layer.is_divided(engines)]
    columns = sum(layer.gradients for layer in layers)
    rest = step.gradients - columns
    found += summed(rest, parts)  # replicated, and equal on all engines but perhaps for the last digits
    if groups > 1:
        found += read(columns / parts, groups, meetings=len(layers)) + read(columns / parts, groups)  # parameters, for the next step
        found += summed(rest, groups)
    return found


def _by_blocks(step: StepMemory, engines: int, groups: int, scale: float) -> Exchange:
    """Return the cost of handing activations on between stages, or of fetching parameters where stages cannot do so."""
    stages = engines // groups
    stage_of = step.stages(stages)
    loads = loads_of(step.groups, stage_of, stages)
    if not step.work.hands_on:
        shares = [load / groups / max(sum(loads), 1) for load in loads]  # of parameters, and of their gradients
        read_most = max(step.work.fetched * (1 - share) + (engines - 1) * share * step.gradients for share in shares)
        return Exchange(int(read_most), step.work.units + len(step.sizes))
    most = max((_handed(step.work.atoms, stage_of, stage, stages, scale / engines) for stage in range(stages)), default=NOTHING)
    if groups > 1:
        most += read(max(loads), groups, meetings=len(step.sizes) // stages) + read(2 * max(loads), groups)
    return most


def _handed(atoms: Sequence[AtomCall], stage_of: Sequence[int], own: int, stages: int, scale: float) -> Exchange:
    """Return what the engine of stage `own` reads: outputs and gradients of its own samples, and inputs that it computes for others."""
    found, at = NOTHING, 0
    while at < len(atoms):
        last = first = atoms[at]
        at += 1
        if first.group < 0:
            continue
        stage = stage_of[first.group]
        # Consecutive modules of a chain on one stage are handed on together.
        while first.chain >= 0 and at < len(atoms) and atoms[at].chain == first.chain:
            if atoms[at].group >= 0 and stage_of[atoms[at].group] != stage:
                break
            last = atoms[at]
            at += 1
        back = first.given if first.is_given_gradient else 0
        if stage == own:
            found += (int((stages - 1) * (first.given + last.returned) * scale), 0)
        else:
            found += (int((last.returned + back) * scale), 2)
    return found

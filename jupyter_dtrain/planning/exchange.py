"""What an engine reads of others in a step, in closed form, as the strategies do it on one host: the engine that reads most.

A sum of *b* bytes over *n* engines is read in two halves, ``2 (n - 1) / n · b``: each engine adds up an *n*-th and reads what others have
(:mod:`..engine.comm.shared_memory`). What a cell reads of a batch, BatchNorm's statistics and the words of a meeting are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..strategies import Divided, StrategyInfo
from .live_bytes import StepMemory
from .model_cut import cut
from .step_work import AtomCall

GROUPED = 1 << 21
"""Bytes of small gradients that go in one exchange, and of a piece of a large one."""


class Exchange(NamedTuple):
    """Bytes that an engine reads of others in a step, and how often it waits for them."""

    num_bytes: int
    meetings: int

    def __add__(self, other: tuple[int, ...]) -> Exchange:  # type: ignore[override]  # of figures
        return Exchange(self[0] + other[0], self[1] + other[1])


NOTHING = Exchange(0, 0)


def summed(num_bytes: float, engines: int) -> Exchange:
    """Return what a sum over so many engines takes."""
    pieces = -(-int(num_bytes) // GROUPED)
    return Exchange(int(2 * (engines - 1) / engines * num_bytes), pieces * (1 if engines == 2 else 2)) if engines > 1 else NOTHING


def read(num_bytes: float, engines: int, *, meetings: int = 0) -> Exchange:
    """Return what it takes to have what each of so many engines has an equal part of."""
    return Exchange(int((engines - 1) / engines * num_bytes), meetings)


def exchanged(step: StepMemory, info: StrategyInfo, engines: int, groups: int, samples: float, *, by_columns: bool) -> Exchange:
    """Return what an engine reads of others under a strategy.

    Parameters
    ----------
    step : StepMemory
        With the work of `step.work.samples` samples.
    engines, groups : int
        Of them, so many groups that each have all of the model.
    samples : float
        Of a batch.
    by_columns : bool
        Whether the strategy divides large linear layers alone.
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
        if groups > 1:  # gradients, and what the other groups have come to
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
    """Return what it takes to put results together, or to add them up, within a group; and gradients, over the groups."""
    parts, found = engines // groups, NOTHING
    if parts > 1:
        for call in step.work.linears:
            if not call.is_divided(engines):
                continue
            if call.place != "second":  # its gradient goes on from engine to engine as it is
                found += summed(call.given * scale if call.is_given_gradient else 0, parts)
            if call.place in ("second", "heads"):
                found += summed(call.returned * scale, parts)
            elif not call.place:
                found += read(call.returned * scale, parts, meetings=1)
    layers = [layer for layer in step.layers if layer.is_divided(engines)]
    columns = sum(layer.gradients for layer in layers)
    rest = step.gradients - columns
    found += summed(rest, parts)  # all have come to the same, but perhaps for last digits
    if groups > 1:
        found += read(columns / parts, groups, meetings=len(layers)) + read(columns / parts, groups)  # parameters, for the next step
        found += summed(rest, groups)
    return found


def _by_blocks(step: StepMemory, engines: int, groups: int, scale: float) -> Exchange:
    """Return what is handed on between stages, or fetched where nothing can be."""
    stages = engines // groups
    stage_of = cut(step.groups, stages)
    loads = [0] * stages
    for size, stage in zip(step.groups, stage_of, strict=True):
        loads[stage] += size
    if not step.work.hands_on:
        shares = [load / groups / max(sum(loads), 1) for load in loads]  # of parameters, and of their gradients
        read_most = max(step.work.fetched * (1 - share) + (engines - 1) * share * step.gradients for share in shares)
        return Exchange(int(read_most), step.work.units + len(step.sizes))
    most = max((_handed(step.work.atoms, stage_of, stage, stages, scale / engines) for stage in range(stages)), default=NOTHING)
    if groups > 1:
        most += read(max(loads), groups, meetings=len(step.sizes) // stages) + read(2 * max(loads), groups)
    return most


def _handed(atoms: Sequence[AtomCall], stage_of: Sequence[int], own: int, stages: int, scale: float) -> Exchange:
    """Return what the engine of a stage reads: results and gradients for its own samples, and what it computes for others."""
    found, at = NOTHING, 0
    while at < len(atoms):
        last = first = atoms[at]
        at += 1
        if first.group < 0:
            continue
        stage = stage_of[first.group]
        # What a chain calls one after the other on one stage goes there once.
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

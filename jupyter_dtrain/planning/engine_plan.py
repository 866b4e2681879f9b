"""What an engine takes under a strategy: a step's bytes, divided as the strategy divides them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..parallel_dims import DATA_PARALLEL
from ..strategies import Divided, Feature, StrategyInfo
from .exchange import exchanged
from .live_bytes import LayerMemory, StepMemory
from .model_cut import cut
from .stage_memory import StageMemory, stages_of
from .step_time import Speeds, seconds

MARGIN = 1.15
"""How much more than its tensors an engine is taken to need: the allocator's gaps, and the work space of libraries."""
COLUMNS = "tp"
"""The axis along which engines have columns of large linear layers, and all of their group's batch."""
_STATE_ALONE = {Divided.OPTIMIZER_STATE}  # of whole parameters: the largest first, each to the engine that has least
UNITS = 2
"""Blocks that are whole at a time: the one at work, and memory for the next one."""


class Measured(Protocol):
    """A model's steps."""

    batch_size: int
    speeds: Speeds

    @property
    def steps(self) -> Mapping[int, StepMemory]:
        """By the samples of a share."""


@dataclass(frozen=True)
class Plan:
    """What an engine takes under a strategy.

    Attributes
    ----------
    engines : int
    strategy : StrategyInfo
    parameters, gradients, optimizer, activations : int
        Bytes of tensors, at the moment of a step when it has most of them.
    mesh : str
        The degrees of groups of engines beside each other, as ``--mesh`` takes them; empty without such.
    exchanged : int
        Bytes that an engine reads of others in a step.
    seconds : float
        Of a step, to compare plans by.
    """

    engines: int
    strategy: StrategyInfo
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    mesh: str = ""
    exchanged: int = 0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """What the table calls it."""
        return self.mesh or self.strategy.name

    @property
    def option(self) -> str:
        """What asks for it."""
        return f"--mesh {self.mesh}" if self.mesh else f"--strategy {self.strategy.name}"

    @property
    def total(self) -> int:
        """Bytes of all of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations

    def fits(self, capacity: int) -> bool:
        """Return whether a device of `capacity` bytes has room for it."""
        return self.total * MARGIN <= capacity


def divides_columns(info: StrategyInfo) -> bool:
    """Return whether a strategy divides large linear layers alone."""
    return info.axis == COLUMNS and bool(info.divides)


def plans(trained: Measured, strategies: Sequence[StrategyInfo], engines: Sequence[int]) -> list[Plan]:
    """Return what an engine takes under each strategy and mesh, for each number of engines; of one engine for the first strategy alone."""
    found = []
    for number in engines:
        found += [_timed(trained, info, number) for info in (strategies if number > 1 else strategies[:1])]
        beside = [info for info in strategies if info.axis not in (None, DATA_PARALLEL) and Feature.HYBRID in info.supports]
        found += [_timed(trained, info, number, groups=groups) for info in beside for groups in reversed(groups_of_engines(number))]
    return found


def _timed(trained: Measured, info: StrategyInfo, number: int, *, groups: int = 1) -> Plan:
    """Return what an engine takes, exchanges and needs time for."""
    plan, by_columns = _plan(trained, info, number, groups=groups), divides_columns(info)
    step, samples = trained.steps[-(-trained.batch_size // number)], trained.batch_size
    exchange = exchanged(step, info, number, groups, samples, by_columns=by_columns)
    took = seconds(step, info, exchange, trained.speeds, engines=number, groups=groups, samples=samples, by_columns=by_columns)
    return replace(plan, exchanged=exchange.num_bytes, seconds=took)


def groups_of_engines(number: int) -> list[int]:
    """Return into how many groups of two engines and more `number` engines can be divided."""
    return [groups for groups in range(2, number) if not number % groups]


def _plan(trained: Measured, info: StrategyInfo, number: int, *, groups: int = 1) -> Plan:
    """Return what an engine takes of `number`, in so many groups that each have all of the model: the one with most."""
    mesh = f"{DATA_PARALLEL}={groups},{info.axis}={number // groups}" if groups > 1 else ""
    if divides_columns(info):
        return _plan_by_columns(trained.steps, -(-trained.batch_size // groups), info, number, groups, mesh)
    samples = -(-trained.batch_size // number)
    step = trained.steps[samples]
    parts = number // groups  # of the model in a group
    if info.by_blocks and step.work.hands_on:
        found = [_plan_of_stage(step, stage, info, number, groups, mesh) for stage in stages_of(step, parts, samples)]
        return max(found, key=lambda plan: plan.total)
    share = _largest_share(step, info, parts)
    parameters, gradients, optimizer, updating = (
        _part(size, share if one in info.divides else 1.0)
        for size, one in (
            (step.parameters, Divided.PARAMETERS),
            (step.gradients, Divided.GRADIENTS),
            (step.optimizer, Divided.OPTIMIZER_STATE),
            (step.updating, Divided.OPTIMIZER_STATE),
        )
    )
    if step.one_by_one and (info.by_blocks or info.divides == _STATE_ALONE):
        updating = step.updating  # of the largest parameter, which one engine has
    whole = min(step.parameters, UNITS * step.largest) if Divided.PARAMETERS in info.divides and parts > 1 else 0
    if whole:  # gradients are whole until they are added up, and there are buffers for the rows all the time
        passing = step.ungraded
    else:
        passing = _between(step.ungraded, step.passing, gradients, step.gradients) - gradients
    if groups > 1:
        if info.by_blocks:  # a stage lies on the engines of all groups, which fetch it to compute with it
            whole, parameters = max(whole, parameters), -(-parameters // groups)
        elif step.sizes:  # what a group's gradients add up to, for the other groups
            passing += max(step.sizes) // parts * (groups - 1) // groups
        gradients, optimizer, updating = (-(-size // groups) for size in (gradients, optimizer, updating))
    return Plan(
        engines=number,
        strategy=info,
        parameters=parameters + whole + step.buffers,
        gradients=gradients,
        optimizer=optimizer,
        activations=max(0, passing, step.remaining + updating),
        mesh=mesh,
    )


def _plan_of_stage(step: StepMemory, stage: StageMemory, info: StrategyInfo, number: int, groups: int, mesh: str) -> Plan:
    """Return what the engine takes that has a stage and hands activations on."""
    parameters, gradients, optimizer = (_part(size, stage.share) for size in (step.parameters, step.gradients, step.optimizer))
    updating = step.updating * stage.largest // max(step.largest, 1) if step.one_by_one else _part(step.updating, stage.share)
    # As gradients of one engine's samples are added to those of the others, those of a layer are there three times.
    begins = stage.passing + max(gradients, 2 * min(gradients, stage.largest))
    ends = gradients + min(gradients, stage.piece) + min(gradients, stage.largest)  # the activations have been let go
    rows = [-(-size // groups) for size in (parameters, gradients, optimizer, updating)]
    return Plan(
        engines=number,
        strategy=info,
        parameters=rows[0] + (parameters if groups > 1 else 0) + step.buffers,  # engines of a stage fetch it from each other
        gradients=rows[1],
        optimizer=rows[2],
        activations=max(0, begins - rows[1], ends - rows[1], step.remaining + rows[3]),
        mesh=mesh,
    )


def _plan_by_columns(steps: Mapping[int, StepMemory], samples: int, info: StrategyInfo, number: int, groups: int, mesh: str) -> Plan:
    """Return what an engine takes that has its rows of large linear layers, and all else; `samples` are all of its group."""
    step, parts = steps[samples], number // groups
    rows, columns, rest = _away(step, number, number), _away(step, number, parts), step.gradients - _away(step, number, 1 << 62).gradients
    # Of what is kept between layers that belong together it has its columns.
    hidden = sum(call.hidden for call in step.work.linears if call.is_divided(number)) * samples // max(step.work.samples, 1)
    hidden = hidden * (parts - 1) // parts
    gradients, optimizer = step.gradients - rows.gradients, step.optimizer - rows.optimizer
    updating = step.updating * (step.parameters - rows.parameters) // max(step.parameters, 1)
    begin, most = _fetched(step, number, parts) if groups > 1 else (0, 0)
    # Of a layer's gradient there are columns as it is computed, and these stay beside the rows, for which there are buffers.
    largest = max((call.parameters for call in step.work.linears if call.is_divided(number)), default=0) * (parts - 1) // parts
    passing = max(step.ungraded - largest + begin, step.passing - columns.gradients + most) - hidden
    whole = max((layer.parameters for layer in step.layers if layer.is_tied and layer.is_divided(number)), default=0)
    return Plan(
        engines=number,
        strategy=info,
        parameters=step.parameters + step.buffers - rows.parameters + whole,
        gradients=gradients,
        optimizer=optimizer,
        activations=max(0, passing - rest, step.remaining + updating),
        mesh=mesh,
    )


def _fetched(step: StepMemory, number: int, parts: int) -> tuple[int, int]:
    """Return what an engine has fetched of its columns as a backward pass begins, and the most of that and gradients, beside these.

    The graph keeps what it needs of a layer until it has come to it.
    """
    calls = [(call.parameters // parts, call.is_given_gradient) for call in step.work.linears if call.is_divided(number)]
    begin = kept = sum(size for size, is_needed in calls if is_needed)
    most = gradients = 0
    for size, is_needed in reversed(calls):
        gradients += size
        most = max(most, kept + gradients)
        kept -= size * is_needed
    return begin, most - gradients


def _away(step: StepMemory, number: int, parts: int) -> LayerMemory:
    """Return what others have of layers that `number` engines divide, where each has one of so many `parts`."""
    away = [0, 0, 0]
    for layer in step.layers:
        if layer.is_divided(number):
            saved = layer.rows - -(-layer.rows // parts)
            sizes = (layer.parameters, layer.gradients, layer.optimizer)
            away = [there + size * saved // layer.rows for there, size in zip(away, sizes, strict=True)]
    return LayerMemory(0, away[0], away[1], away[2])


def _between(ungraded: int, passing: int, part: int, gradients: int) -> int:
    """Return the most of a pass with `part` of the gradients, which is at most so far between that with none of them and that with all."""
    return ungraded + (passing - ungraded) * part // max(gradients, 1)


def _largest_share(step: StepMemory, info: StrategyInfo, parts: int) -> float:
    """Return the share of the engine with most, of `parts` that have a part each."""
    if info.by_blocks:
        loads = [0] * parts
        for size, part in zip(step.groups, cut(step.groups, parts), strict=True):
            loads[part] += size
    elif info.divides == _STATE_ALONE:
        loads = [0] * parts
        for size in sorted(step.sizes, reverse=True):
            loads[loads.index(min(loads))] += size
    else:
        return 1 / parts
    return max(loads) / max(sum(loads), 1)


def _part(size: int, share: float) -> int:
    return int(size * share + 0.5)

"""Predict an engine's memory under a strategy: the bytes of a step, divided as the strategy shards them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..parallel_dims import DATA_PARALLEL
from ..strategies import Divided, Feature, StrategyInfo
from .exchange import exchanged
from .live_bytes import LayerMemory, StepMemory
from .model_cut import loads_of
from .stage_memory import StageMemory, stages_of
from .step_time import Speeds, seconds

MARGIN = 1.15
"""Factor from an engine's tensors to its memory: gaps of the allocator and workspace of libraries."""
COLUMNS = "tp"
"""The mesh axis along which engines hold columns of large linear layers. Each of them computes its group's full batch."""
_STATE_ALONE = {Divided.OPTIMIZER_STATE}  # the state of a parameter is on one engine: the largest first, to the least loaded
UNITS = 2
"""Blocks that are full at a time: the one that computes, and the buffer for the next one."""


class Measured(Protocol):
    """The measured steps of a model."""

    batch_size: int
    speeds: Speeds

    @property
    def steps(self) -> Mapping[int, StepMemory]:
        """Memory of a step by the samples of a share."""


@dataclass(frozen=True)
class Plan:
    """Memory and time of an engine under a strategy.

    Attributes
    ----------
    engines : int
    strategy : StrategyInfo
    parameters, gradients, optimizer, activations : int
        Bytes of tensors at the peak of a step.
    mesh : str
        Degrees of data parallelism and of the strategy, as ``--mesh`` takes them; empty without a mesh.
    exchanged : int
        Bytes that an engine reads from others in a step.
    seconds : float
        Estimated time of a step, to compare plans by.
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
        """The plan's name in the table."""
        return self.mesh or self.strategy.name

    @property
    def option(self) -> str:
        """The option that selects the plan."""
        return f"--mesh {self.mesh}" if self.mesh else f"--strategy {self.strategy.name}"

    @property
    def total(self) -> int:
        """Bytes of parameters, gradients, optimizer state and activations together."""
        return self.parameters + self.gradients + self.optimizer + self.activations

    def fits(self, capacity: int) -> bool:
        """Return whether the plan, with `MARGIN`, fits a device of `capacity` bytes."""
        return self.total * MARGIN <= capacity


def divides_columns(info: StrategyInfo) -> bool:
    """Return whether a strategy shards only large linear layers."""
    return info.axis == COLUMNS and bool(info.divides)


def plans(trained: Measured, strategies: Sequence[StrategyInfo], engines: Sequence[int]) -> list[Plan]:
    """Return a plan for each number of engines, strategy and mesh; for one engine, of the first strategy only."""
    found = []
    for number in engines:
        found += [_timed(trained, info, number) for info in (strategies if number > 1 else strategies[:1])]
        beside = [info for info in strategies if info.axis not in (None, DATA_PARALLEL) and Feature.HYBRID in info.supports]
        found += [_timed(trained, info, number, groups=groups) for info in beside for groups in reversed(groups_of_engines(number))]
    return found


def _timed(trained: Measured, info: StrategyInfo, number: int, *, groups: int = 1) -> Plan:
    """Return a plan with its bytes exchanged and its seconds."""
    plan, by_columns = _plan(trained, info, number, groups=groups), divides_columns(info)
    step, samples = trained.steps[-(-trained.batch_size // number)], trained.batch_size
    exchange = exchanged(step, info, number, groups, samples, by_columns=by_columns)
    took = seconds(step, info, exchange, trained.speeds, engines=number, groups=groups, samples=samples, by_columns=by_columns)
    return replace(plan, exchanged=exchange.num_bytes, seconds=took)


def groups_of_engines(number: int) -> list[int]:
    """Return the numbers of groups into which `number` engines can be divided, each group having at least two engines."""
    return [groups for groups in range(2, number) if not number % groups]


def _plan(trained: Measured, info: StrategyInfo, number: int, *, groups: int = 1) -> Plan:
    """Return the plan of the engine with the largest memory, among `number` engines in `groups` that each hold the full model."""
    mesh = f"{DATA_PARALLEL}={groups},{info.axis}={number // groups}" if groups > 1 else ""
    if divides_columns(info):
        return _plan_by_columns(trained.steps, -(-trained.batch_size // groups), info, number, groups, mesh)
    samples = -(-trained.batch_size // number)
    step = trained.steps[samples]
    parts = number // groups  # shards of the model in a group
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
        updating = step.updating  # of the largest parameter, which is on one engine
    whole = min(step.parameters, UNITS * step.largest) if Divided.PARAMETERS in info.divides and parts > 1 else 0
    if whole:  # a full gradient exists until its reduce-scatter, and the buffers of shards stay allocated
        passing = step.ungraded
    else:
        passing = _between(step.ungraded, step.passing, gradients, step.gradients) - gradients
    if groups > 1:
        if info.by_blocks:  # a stage is sharded over the engines of all groups, which fetch it to compute with it
            whole, parameters = max(whole, parameters), -(-parameters // groups)
        elif step.sizes:  # the sum of a group's gradients, for the other groups
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
    """Return the plan of an engine that holds a pipeline stage and hands activations on."""
    parameters, gradients, optimizer = (_part(size, stage.share) for size in (step.parameters, step.gradients, step.optimizer))
    updating = step.updating * stage.largest // max(step.largest, 1) if step.one_by_one else _part(step.updating, stage.share)
    # One engine's gradients of a layer are added to those of the others, so three copies of them exist.
    begins = stage.passing + max(gradients, 2 * min(gradients, stage.largest))
    ends = gradients + min(gradients, stage.piece) + min(gradients, stage.largest)  # the activations are freed
    rows = [-(-size // groups) for size in (parameters, gradients, optimizer, updating)]
    return Plan(
        engines=number,
        strategy=info,
        parameters=rows[0] + (parameters if groups > 1 else 0) + step.buffers,  # the engines of a stage fetch it from each other
        gradients=rows[1],
        optimizer=rows[2],
        activations=max(0, begins - rows[1], ends - rows[1], step.remaining + rows[3]),
        mesh=mesh,
    )


def _plan_by_columns(steps: Mapping[int, StepMemory], samples: int, info: StrategyInfo, number: int, groups: int, mesh: str) -> Plan:
    """Return the plan of an engine with its shard of large linear layers and a replica of all else; `samples` is its group's batch."""
    step, parts = steps[samples], number // groups
    rows, columns, rest = _away(step, number, number), _away(step, number, parts), step.gradients - _away(step, number, 1 << 62).gradients
    # It holds its columns of the activations that are kept between the layers of a pair.
    hidden = sum(call.hidden for call in step.work.linears if call.is_divided(number)) * samples // max(step.work.samples, 1)
    hidden = hidden * (parts - 1) // parts
    gradients, optimizer = step.gradients - rows.gradients, step.optimizer - rows.optimizer
    updating = step.updating * (step.parameters - rows.parameters) // max(step.parameters, 1)
    begin, most = _fetched(step, number, parts) if groups > 1 else (0, 0)
    # The columns of a layer's gradient exist beside the shard of rows, for which buffers are allocated.
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
    """Return the bytes of fetched columns when a backward pass begins, and their peak with gradients, beyond the gradients alone.

    The autograd graph keeps a layer's columns until its backward pass.
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
    """Return the bytes on other engines of layers that `number` engines divide, if each holds one of `parts` parts."""
    away = [0, 0, 0]
    for layer in step.layers:
        if layer.is_divided(number):
            saved = layer.rows - -(-layer.rows // parts)
            sizes = (layer.parameters, layer.gradients, layer.optimizer)
            away = [there + size * saved // layer.rows for there, size in zip(away, sizes, strict=True)]
    return LayerMemory(0, away[0], away[1], away[2])


def _between(ungraded: int, passing: int, part: int, gradients: int) -> int:
    """Return the peak of a pass with `part` of the gradients, interpolated between its peak without gradients and with all."""
    return ungraded + (passing - ungraded) * part // max(gradients, 1)


def _largest_share(step: StepMemory, info: StrategyInfo, parts: int) -> float:
    """Return the largest share among `parts` engines."""
    if info.by_blocks:
        loads = loads_of(step.groups, step.stages(parts), parts)
    elif info.divides == _STATE_ALONE:
        loads = [0] * parts
        for size in sorted(step.sizes, reverse=True):
            loads[loads.index(min(loads))] += size
    else:
        return 1 / parts
    return max(loads) / max(sum(loads), 1)


def _part(size: int, share: float) -> int:
    return int(size * share + 0.5)

"""``%distribute plan``: predict an engine's memory under each strategy and number of engines, before any engine is started."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..errors import UsageError
from ..strategies import Feature, StrategyInfo, available
from ..system.resources import size_text
from .cell_batch import first_batch
from .engine_plan import MARGIN, Plan, divides_columns, groups_of_engines
from .fake_step import Call, train_on_fakes
from .forked import call_in_fork
from .layer_calls import NO_RULES, Rules
from .live_bytes import StepMemory
from .new_process import call_in_new_process
from .step_time import Speeds, measured_speeds

LIMIT = timedelta(seconds=60)


@dataclass
class Trained:
    """A model that a cell trains, as far as it is known before the cell runs.

    Attributes
    ----------
    name : str
        Name of the model in the notebook.
    optimizers : list of Optimizer
        Optimizers with parameters of the model.
    batch_size : int
        Samples of a global batch.
    steps : dict of int to StepMemory
        Memory by the samples of a share.
    speeds : Speeds
        Speeds of this machine.
    """

    name: str
    optimizers: list[Optimizer]
    batch_size: int
    steps: dict[int, StepMemory]
    speeds: Speeds = field(default_factory=Speeds)


def measure(
    tree: ast.Module,
    values: Mapping[str, Any],
    *,
    engines: Sequence[int],
    device: str,
    limit: timedelta = LIMIT,
    rules: Rules = NO_RULES,
) -> Trained:
    """Run a training step of a cell's model on fake tensors, for each share of a batch that an engine can have.

    Parameters
    ----------
    tree : ast.Module
        The cell.
    values : mapping of str to object
        Values of the notebook that the cell uses, by name.
    engines : sequence of int
        Possible numbers of engines.
    device : {"cpu", "cuda"}
        Device of the engines.
    limit : timedelta
        Time limit.
    rules : Rules
        Which layers engines compute together.

    Raises
    ------
    UsageError
        The values include no model or no loader, or the model cannot be called; the message says what to do.
    """
    models = {name: value for name, value in values.items() if isinstance(value, nn.Module) and any(True for _ in value.parameters())}
    if not models:
        raise UsageError("The cell has no model from the notebook: make it in a cell above, and run that.")
    name = max(models, key=lambda one: sum(parameter.numel() for parameter in models[one].parameters()))
    loaders = [value for value in values.values() if isinstance(value, DataLoader)]
    if not loaders:
        raise UsageError("The cell has no DataLoader from the notebook, whose first batch the plan needs.")
    model, loader = models[name], loaders[0]
    own = {id(parameter) for parameter in model.parameters()}
    optimizers = [
        value
        for value in values.values()
        if isinstance(value, Optimizer) and any(id(parameter) in own for group in value.param_groups for parameter in group["params"])
    ]
    call = _calls(tree, name, model)

    try:
        # A group of engines that shards layers computes the full batch of the group.
        numbers = sorted({1, *engines, *(groups for number in engines for groups in groups_of_engines(number))})
        keeps_output = _keeps_output(tree, name)
        train_on = partial(_train_and_measure, model, optimizers, numbers, device=device, call=call, keeps_output=keeps_output, rules=rules)
        if torch.cuda.is_available():  # which a fork of this process cannot use, nor autograd
            (size, steps), speeds = call_in_new_process(lambda: _without_data(train_on, model, optimizers, loader), limit=limit)
        else:
            (size, steps), speeds = call_in_fork(lambda: train_on(first_batch(loader)), limit=limit)
    except UsageError as error:
        raise UsageError(
            f"What {name} takes cannot be predicted before the cell runs: {error}. While it runs, the sidebar shows it."
        ) from None
    return Trained(name, optimizers, size, steps, speeds)


def _train_and_measure(
    model: nn.Module, optimizers: Sequence[Optimizer], engines: Sequence[int], batch: Any, *, device: str, **options: Any
) -> tuple[tuple[int, dict[int, StepMemory]], Speeds]:
    return train_on_fakes(model, optimizers, batch, engines, device=device, **options), measured_speeds(device)


def _without_data(
    train_on: Callable[[Any], Any], model: nn.Module, optimizers: Sequence[Optimizer], loader: Any
) -> tuple[Callable[[], Any], list[torch.Tensor]]:
    """Return what to call in another process, and the tensors that it needs no data of. Changes the optimizers."""
    for optimizer in optimizers:
        optimizer.state.clear()
    return partial(train_on, first_batch(loader)), [*model.parameters(), *model.buffers()]


def strategies_on(device: str) -> list[StrategyInfo]:
    """Return the strategies whose memory on such devices can be predicted."""
    return [info for info in available() if (Feature.SHARDING in info.supports or divides_columns(info)) and device in info.divides_on]


def choice(found: Sequence[Plan], engines: int, capacity: int) -> tuple[Plan | None, str]:
    """Return the recommended plan for `engines` engines, ``None`` if none fits, and the reason as a sentence.

    It is data parallelism if that fits, as it supports most cells, and otherwise the fastest plan that fits.
    """
    if not capacity:
        return None, f"How much memory each of {engines} engines has is not known here."
    candidates = [plan for plan in found if plan.engines == engines]
    plain = next((plan for plan in candidates if not plan.strategy.divides), candidates[0])
    fitting = [plan for plan in candidates if plan.fits(capacity)]
    if plain in fitting:
        why = f"{plain.option}: {size_text(plain.total)} of {size_text(capacity)} for each of {engines} engines; all of the model fits."
        return plain, why
    if fitting:
        plan = min(fitting, key=lambda plan: (plan.seconds, plan.exchanged, plan.total))
        most = "the fastest of those that fit" if len(fitting) > 1 else "nothing else fits"
        return plan, (
            f"{plan.option}: {size_text(plan.total)} of {size_text(capacity)} for each of {engines} engines; {plain.name} would take "
            f"{size_text(plain.total)}, and this is {most}."
        )
    least = min(candidates, key=lambda plan: plan.total)
    return None, (
        f"None has room: {least.option} takes least, {size_text(least.total)} for each of {engines} engines and {MARGIN - 1:.0%} more for "
        f"the allocator; each has {size_text(capacity)}. More engines, a smaller batch_size or --checkpoint-activations take less."
    )


def less_than(taken: str, found: Sequence[Plan], engines: int, capacity: int) -> str:
    """Return a sentence about a plan with less memory than the one named `taken`, for as many engines; empty if there is none.

    Of the plans that fit, it takes the one that shards the fewest kinds of tensors, else the one with the least memory.
    """
    own = next((plan for plan in found if plan.engines == engines and plan.name == taken), None)
    less = [] if own is None else [plan for plan in found if plan.engines == engines and plan.total * MARGIN <= own.total]
    if own is None or not less:
        return ""
    fitting = sorted((plan for plan in less if plan.fits(capacity)), key=lambda plan: len(plan.strategy.divides))
    plan = fitting[0] if fitting else min(less, key=lambda plan: plan.total)
    return f"`{plan.option}` would take {size_text(plan.total)} on each of {engines} engines, where {taken} takes {size_text(own.total)}."


def table(found: Sequence[Plan]) -> str:
    """Return plans as a text table."""
    lines: list[tuple[str, ...]] = [
        ("engines", "strategy", "per engine", "parameters", "gradients", "optimizer", "activations", "exchanged", "a step")
    ]
    for plan in found:
        parts = (plan.total, plan.parameters, plan.gradients, plan.optimizer, plan.activations, plan.exchanged)
        lines.append((str(plan.engines), plan.name, *map(size_text, parts), duration_text(plan.seconds)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(f"{text:>{width}}" for text, width in zip(line, widths, strict=True)) for line in lines)


def duration_text(seconds: float) -> str:
    """Return a duration as ``12 ms``, ``3.4 s``."""
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.0995 else f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _keeps_output(tree: ast.Module, name: str) -> bool:
    """Return whether a cell binds the model's output to a name, and ``True`` if it does not call the model itself."""
    calls = {id(node) for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name}
    kept = (ast.Assign, ast.AnnAssign, ast.NamedExpr)
    return not calls or any(id(node.value) in calls for node in ast.walk(tree) if isinstance(node, kept))


def _calls(tree: ast.Module, name: str, model: nn.Module) -> Call:
    """Return a function that calls the model with a batch as the cell's text does, or as cells usually do."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name]
    count = len(calls[0].args) if calls and not any(isinstance(one, ast.Starred) for one in calls[0].args) else None
    required = [
        one
        for one in inspect.signature(model.forward).parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]

    def call(called: nn.Module, batch: Any) -> Any:
        if isinstance(batch, Mapping):
            by_name = not calls or any(word.arg is None for word in calls[0].keywords)
            return called(**batch) if by_name else called(*list(batch.values())[: count or 1])
        if isinstance(batch, list | tuple):
            return called(*batch[: count or max(1, len(required))])
        return called(batch)

    return call

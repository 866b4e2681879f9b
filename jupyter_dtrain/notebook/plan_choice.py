"""What ``--strategy auto`` takes: data parallel where that has room, and otherwise the fastest of the plans that have.

A strategy saves no more than parameters, gradients and what optimizers keep. So where these are little beside the memory of an engine, no
step is gone through, and a cell begins as soon as it does without.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..cluster.devices import BYTES_OF_ENGINE
from ..cluster.gpus import bytes_for_each
from ..cluster.launchers import LOCAL
from ..errors import UsageError
from ..parallel_dims import ParallelDims
from ..strategies import DEFAULT

if TYPE_CHECKING:
    from ..options import RunOptions
    from ..planning.engine_plan import Plan

LIMIT = timedelta(seconds=30)
"""Time that it may take before the cell."""
COPIES = 4
"""Of parameters that an engine has: these, their gradients, and what Adam keeps."""
LITTLE = 0.25
"""The part of an engine's memory up to which parameters and what is made of them are little."""


def room_for_each(engines: int, *, device: str) -> int:
    """Return the bytes that tensors of each of so many engines may take; 0 where that is not known.

    On CPUs the kernel and each engine have taken some before, as PyTorch is in each.
    """
    room = bytes_for_each(engines, device=device)
    return room if device == "cuda" or not room else max(1, room - BYTES_OF_ENGINE * (engines + 1) // engines)


def chosen(
    options: RunOptions,
    tree: ast.Module,
    names: Iterable[str],
    namespace: Mapping[str, Any],
    *,
    engines: int,
    device: str,
    say: Callable[[str], None],
) -> RunOptions:
    """Return `options` with the strategy or the mesh that a cell is to have.

    Parameters
    ----------
    tree, names, namespace
        The cell, what it uses, and what there is in the notebook.
    engines : int
        How many there are.
    device : {"cpu", "cuda"}
        What they compute on.
    say : callable
        Shows a line in the cell.

    Raises
    ------
    UsageError
        No plan fits into ``--memory-limit``.
    """
    is_open = options.strategy == DEFAULT and options.mesh is None and options.semantics == "global" and not options.vary
    if not is_open or engines < 2 or options.cluster.launcher not in (None, LOCAL):
        return options
    values = {name: namespace[name] for name in names if name in namespace}
    room = options.memory_limit or room_for_each(engines, device=device)
    at_least = COPIES * _parameters_of(values)
    if not room or (options.memory_limit is None and at_least <= LITTLE * room):
        return options

    from ..engine.strategies.tensor_parallel import rules
    from ..planning.engine_plan import plans
    from ..planning.memory_plan import choice, measure, strategies_on, table

    try:
        trained = measure(tree, values, engines=[engines], device=device, limit=LIMIT, rules=rules)
    except UsageError as error:
        if at_least > room or options.memory_limit is not None:
            say(f"`--strategy auto` takes data parallel, as no plan can be made. {error}")
        return options
    found = [plan for plan in plans(trained, strategies_on(device), [engines]) if _with(options, plan) is not None]
    plan, why = choice(found, engines, room)
    if plan is None and options.memory_limit is not None:
        raise UsageError(f"--memory-limit: {why}\n\n{table(found)}")
    plan = plan or min(found, key=lambda plan: plan.total)
    if not plan.strategy.divides:
        return options
    say(f"`--strategy auto` takes {why}\n\n{table(found)}")
    return _with(options, plan) or options


def _parameters_of(values: Mapping[str, Any]) -> int:
    """Return the bytes of the parameters of the largest model among `values`."""
    from torch import nn

    return max((sum(one.nbytes for one in value.parameters()) for value in values.values() if isinstance(value, nn.Module)), default=0)


def _with(options: RunOptions, plan: Plan) -> RunOptions | None:
    """Return `options` with a plan, ``None`` where they and it cannot be combined."""
    changes: dict[str, Any] = {"mesh": ParallelDims.parse(plan.mesh)} if plan.mesh else {"strategy": plan.strategy.name}
    try:
        return replace(options, **changes, memory_limit=None)
    except UsageError:
        return None

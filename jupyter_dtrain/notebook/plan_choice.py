"""``--strategy auto``: data parallel if it fits into memory, otherwise the fastest plan that fits.

A strategy can only save parameters, gradients and optimizer state. If these are small compared with an engine's memory, no step is planned
and the cell begins at once.
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
from ..strategies import is_default

if TYPE_CHECKING:
    from ..options import RunOptions
    from ..planning.engine_plan import Plan

LIMIT = timedelta(seconds=30)
"""Longest time for planning before the cell."""
COPIES = 4
"""Copies of the parameters that an engine holds: parameters, gradients, and Adam's state."""
LITTLE = 0.25
"""Part of an engine's memory up to which parameters and their copies count as small."""


def room_for_each(engines: int, *, device: str) -> int:
    """Return the bytes for tensors of each of `engines` engines; 0 if unknown.

    On CPUs, the memory of PyTorch itself in the kernel and each engine is subtracted.
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
    """Return `options` with the strategy or mesh for a cell.

    Parameters
    ----------
    tree, names, namespace
        The cell, the names that it uses, and the notebook's namespace.
    engines : int
        Number of engines.
    device : {"cpu", "cuda"}
        Their device.
    say : callable
        Shows a line in the cell.

    Raises
    ------
    UsageError
        No plan fits into ``--memory-limit``.
    """
    is_open = is_default(options.strategy) and options.mesh is None and options.semantics == "global" and not options.vary
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
    """Return `options` with a plan, ``None`` if they cannot be combined."""
    changes: dict[str, Any] = {"mesh": ParallelDims.parse(plan.mesh)} if plan.mesh else {"strategy": plan.strategy.name}
    try:
        return replace(options, **changes, memory_limit=None)
    except UsageError:
        return None

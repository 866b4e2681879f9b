"""Advice for out-of-memory errors: which strategy needs less memory, according to ``%distribute plan``."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..errors import CellError
from ..system.resources import PLAN

if TYPE_CHECKING:
    from ..engine.task import Task

LIMIT = timedelta(seconds=20)
"""Longest time for the plan, as the error is shown after it."""


def name_plan(error: BaseException, namespace: Mapping[str, Any], task: Task) -> None:
    """Insert the plan's advice into `error` where it mentions the plan command; leave it unchanged if there is none.

    Parameters
    ----------
    namespace : mapping of str to object
        The notebook's names.
    task : Task
        Of the cell.
    """
    lines = error.lines if isinstance(error, CellError) else [str(error)]
    is_hybrid = task.options.mesh is not None and len(task.options.mesh.degrees) > 1
    if is_hybrid or task.spans_hosts or not any(PLAN in line for line in lines):
        return
    try:
        sentence = _less(namespace, task)
    except (Exception, KeyboardInterrupt):  # show the error in any case
        return
    if not sentence:
        return
    lines = [line.replace(PLAN, f"{sentence} {PLAN}") for line in lines]
    if isinstance(error, CellError):
        error.lines = lines
    else:
        error.args = (*lines, *error.args[1:])


def _less(namespace: Mapping[str, Any], task: Task) -> str:
    from ..analysis.names import find_names
    from ..cluster.gpus import bytes_for_each
    from ..planning.engine_plan import plans
    from ..planning.memory_plan import less_than, measure, strategies_on

    tree, device, engines = ast.parse(task.source), task.device.partition(":")[0], task.world_size
    values = {name: namespace[name] for name in find_names(tree) if name in namespace}
    found = plans(measure(tree, values, engines=[engines], device=device, limit=LIMIT), strategies_on(device), [engines])
    return less_than(task.strategy.name, found, engines, bytes_for_each(engines, device=device))

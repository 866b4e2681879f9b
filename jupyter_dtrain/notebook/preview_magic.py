"""``%distribute preview`` and ``plan``: find the cell, and return the text to show."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from ..cluster_options import ClusterOptions

MAGIC = "%%distribute"


def preview_text(tree: ast.Module, namespace: dict[str, Any]) -> str:
    """Return tables of what a cell would send, and, if it has loops, in which of them a run can resume."""
    from ..analysis.loop_report import loop_rows, loop_table
    from ..analysis.names import find_names
    from ..capture.preview import preview, table

    tables = [table(preview(find_names(tree), namespace)), loop_table(loop_rows(tree, namespace))]
    return "\n\n".join(part for part in tables if part)


def plan_text(tree: ast.Module, namespace: dict[str, Any], cluster: ClusterOptions) -> str:
    """Return a table of the memory that a cell needs on each engine under each strategy, with a recommendation.

    Raises
    ------
    UsageError
        The memory cannot be determined.
    """
    from ..analysis.names import find_names
    from ..cluster.devices import plan_devices
    from ..engine.strategies.tensor_parallel import rules
    from ..planning.engine_plan import plans
    from ..planning.memory_plan import choice, measure, strategies_on, table
    from .plan_choice import room_for_each

    if cluster.hosts:
        raise UsageError("%distribute plan knows only the memory of this host: omit --hosts, and give --engines N.")
    devices = plan_devices(cluster)
    device, wanted = devices[0].kind, len(devices)
    engines = sorted({1, 2, 4, 8, wanted})
    values = {name: namespace[name] for name in find_names(tree) if name in namespace}
    trained = measure(tree, values, engines=engines, device=device, rules=rules)
    found = plans(trained, strategies_on(device), engines)
    step = next(iter(trained.steps.values()))
    by = " and ".join(type(optimizer).__name__ for optimizer in trained.optimizers) or "no optimizer"
    return "\n".join(
        (
            f"{trained.name} under {by}, batches of {trained.batch_size}; bytes of tensors on {device}, with {step.loss} for its loss.",
            "",
            table(found),
            "",
            choice(found, wanted, room_for_each(wanted, device=device))[1],
        )
    )


def cell_to_preview(cells: Sequence[str], number: int | None) -> tuple[int, str]:
    """Return a cell's number, and its text without a ``%%distribute`` line.

    Parameters
    ----------
    cells : sequence of str
        The notebook's input history: the first cell at 1, the asking one last.
    number : int, optional
        Number of the cell; by default the last one with a ``%%distribute`` line.

    Raises
    ------
    UsageError
        There is no such cell.
    """
    if number is None:
        number = next((at for at in range(len(cells) - 2, 0, -1) if cells[at].startswith(MAGIC) and _body(cells[at]).strip()), None)
        if number is None:
            raise UsageError(
                f"No cell has been distributed yet. `%distribute preview 3` shows what cell [3] would send, `{MAGIC} --preview` on top of "
                "a cell what that one would."
            )
    if not 0 < number < len(cells) - 1:
        raise UsageError(f"There is no cell [{number}] that was run before this one.")
    return number, _body(cells[number])


def _body(cell: str) -> str:
    return cell.partition("\n")[2] if cell.startswith(MAGIC) else cell

"""``%distribute preview`` and ``plan``: which cell is meant, and what is shown of it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from ..cluster_options import ClusterOptions

MAGIC = "%%distribute"


def preview_text(tree: ast.Module, namespace: dict[str, Any]) -> str:
    """Return what a cell would send, and in which of its loops a run can go on: two tables, or one where it has no loops."""
    from ..analysis.loop_report import loop_rows, loop_table
    from ..analysis.names import find_names
    from ..capture.preview import preview, table

    tables = [table(preview(find_names(tree), namespace)), loop_table(loop_rows(tree, namespace))]
    return "\n\n".join(part for part in tables if part)


def plan_text(tree: ast.Module, namespace: dict[str, Any], cluster: ClusterOptions) -> str:
    """Return what a cell would take on each engine under each strategy: a table, and which of them to take.

    Raises
    ------
    UsageError
        It cannot be told.
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
    """Return the number of a cell and its text without the ``%%distribute`` line, if it has one.

    Parameters
    ----------
    cells : sequence of str
        What was run in this notebook, the first at 1, and last the one that asks.
    number : int, optional
        That of the cell; by default the last one that has a ``%%distribute`` line is meant.

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

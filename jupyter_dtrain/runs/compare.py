"""What changed from one run to another: arguments, versions, and the text of the cell."""

from __future__ import annotations

import difflib
from typing import Any

from ..protocol import Change, Comparison
from .record import RunRecord


def compare(before: RunRecord, after: RunRecord) -> Comparison:
    """Return what changed from the run `before` to the run `after`."""
    old, new = _facts(before), _facts(after)
    names = [*old, *(name for name in new if name not in old)]
    diff = difflib.unified_diff(
        before.cell().splitlines(), after.cell().splitlines(), fromfile=before.name, tofile=after.name, lineterm="", n=2
    )
    return Comparison(
        before=before.run_id,
        after=after.run_id,
        changes=[Change(name=name, before=old.get(name), after=new.get(name)) for name in names if old.get(name) != new.get(name)],
        cell=list(diff)[2:],  # the two names are known
    )


def _facts(record: RunRecord) -> dict[str, str]:
    """Return everything that a run was started with, but its cell, by name."""
    environment = record.environment()
    packages = environment.pop("packages", {})
    named: dict[str, Any] = {"world size": record.world_size, **record.arguments, **environment, **(packages or {})}
    return {name: "not given" if value is None else str(value) for name, value in named.items()}

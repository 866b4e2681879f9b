"""Compare two runs: hyperparameters, arguments, versions, functions and the text of the cell."""

from __future__ import annotations

import difflib
from typing import Any

from ..protocol import Change, Comparison, FunctionChange
from .record import RunRecord


def compare(before: RunRecord, after: RunRecord) -> Comparison:
    """Return what changed from the run `before` to the run `after`."""
    functions = before.functions(), after.functions()
    texts = {name: tuple(texts.get(name, "") for texts in functions) for name in sorted({*functions[0], *functions[1]})}
    return Comparison(
        before=before.run_id,
        after=after.run_id,
        changes=_changes(_facts(before), _facts(after)),
        cell=_diff(before.cell(), after.cell()),
        hyperparameters=_changes(*({name: _text(value) for name, value in (run.hyperparameters or {}).items()} for run in (before, after))),
        functions=[FunctionChange(name=name, lines=_diff(*pair)) for name, pair in texts.items() if pair[0] != pair[1]],
        unknown=[run.name for run in (before, after) if run.hyperparameters is None],
    )


def _changes(old: dict[str, str], new: dict[str, str]) -> list[Change]:
    names = dict.fromkeys([*old, *new])
    return [Change(name=name, before=old.get(name), after=new.get(name)) for name in names if old.get(name) != new.get(name)]


def _diff(before: str, after: str) -> list[str]:
    return list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2))[2:]  # without the header of file names


def _text(value: object) -> str:
    return "not given" if value is None else str(value)


def _facts(record: RunRecord) -> dict[str, str]:
    """Return everything by name that a run was started with, except its cell."""
    environment = record.environment()
    packages = environment.pop("packages", {})
    named: dict[str, Any] = {
        "world size": record.world_size,
        **record.arguments,
        **environment,
        **(packages if isinstance(packages, dict) else {}),
    }
    named.pop("sweep", None)  # unique to each sweep
    named.pop("vary", None)  # its values are among the hyperparameters
    return {name: _text(value) for name, value in named.items()}

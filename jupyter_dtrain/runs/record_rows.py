"""Validate rows of the record of runs, as the database may come from anyone."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from ..errors import StoreError
from ..protocol import CurveSummary, RunPhase, Value
from ..system.confined import is_run_id
from .owner import Owner
from .record import RunRecord

MAX_NAME = 10_000  # characters
MAX_RANKS = 1 << 20
_PHASES = get_args(RunPhase)


class ForeignRowError(StoreError):
    """A row that this project cannot have written."""


def record_of(row: sqlite3.Row, folder: Path) -> RunRecord:
    """Return the record for a row of `runs` in `folder`; raise a `ForeignRowError` if the row is invalid."""
    return RunRecord(
        run_id=_checked(row, "run_id", is_run_id),  # names the folder that is read and deleted
        number=_checked(row, "number", _is_count),
        name=_printable(_checked(row, "name", _is_name)),
        phase=_checked(row, "phase", lambda value: value in _PHASES),
        world_size=_checked(row, "world_size", lambda value: _is_count(value) and value <= MAX_RANKS),
        started=_checked(row, "started", _is_time),
        ended=_checked(row, "ended", lambda value: value is None or _is_time(value)),
        error=_checked(row, "error", lambda value: isinstance(value, str | None)),
        arguments=_json(row, "arguments", lambda value: isinstance(value, dict)),
        tags=list(map(_printable, _json(row, "tags", _is_tags))) if "tags" in row.keys() else [],  # noqa: SIM118 - a row is no dict
        hyperparameters=_hyperparameters(row),
        folder=folder / row["run_id"],
    )


def summary_of(row: sqlite3.Row) -> CurveSummary | None:
    """Return the summary in a row of `curves`, ``None`` if the row is invalid."""
    name, *values = row["name"], row["last"], row["low"], row["high"]
    if not (_is_name(name) and all(value is None or isinstance(value, float) for value in values)):
        return None
    last, low, high = (value if value is not None and math.isfinite(value) else None for value in values)
    return CurveSummary(name=_printable(name), last=last, low=low, high=high)


def _hyperparameters(row: sqlite3.Row) -> dict[str, Value] | None:
    if "hyperparameters" not in row.keys() or row["hyperparameters"] is None:  # noqa: SIM118 - a row is no dict
        return None
    found = _json(row, "hyperparameters", lambda values: isinstance(values, dict) and all(map(_is_value, values.values())))
    return {_printable(name): _printable(value) if isinstance(value, str) else value for name, value in found.items()}


def _is_value(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isfinite(value)) or isinstance(value, int) or _is_name(value)


def owner_of(row: sqlite3.Row) -> Owner:
    """Return the process that a row of `runs` names; raise a `ForeignRowError` if the row is invalid."""
    _checked(row, "seen", _is_time)
    return Owner(
        host=_checked(row, "owner_host", _is_name),
        pid=_checked(row, "owner_pid", lambda value: _is_count(value) and value < 1 << 31),
        created=_checked(row, "owner_created", _is_time),
    )


def _checked(row: sqlite3.Row, column: str, is_right: Callable[[Any], bool]) -> Any:
    value = row[column]
    if not is_right(value):
        raise ForeignRowError(f"its {column} is {_short(value)}")
    return value


def _json(row: sqlite3.Row, column: str, is_right: Callable[[Any], bool]) -> Any:
    try:
        value = json.loads(row[column])
    except (TypeError, ValueError, RecursionError):
        value = None
    if not is_right(value):
        raise ForeignRowError(f"its {column} is {_short(row[column])}")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME


def _is_time(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value >= 0


def _is_tags(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_name, value))


def _printable(text: str) -> str:
    """Return `text` without control characters, which would move a terminal's cursor or start a line."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"

"""The data of a run that every export gets, and the import of a tool's library."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from ...errors import UsageError
from ...protocol import Value
from ..curves import OF_DEVICES
from ..record import RunRecord
from ..store import RunStore


@dataclass(frozen=True)
class ExportedRun:
    """A run to export, with all points of its curves.

    Attributes
    ----------
    record : RunRecord
    curves : dict of str to list of (step, time, value)
        By name; times in seconds since the epoch. A value that is not a number is ``nan``.
    """

    record: RunRecord
    curves: dict[str, list[tuple[int, float, float]]]

    @classmethod
    def of(cls, record: RunRecord, store: RunStore, *, devices: bool) -> ExportedRun:
        """Return a run of `store`; `devices` tells whether to include the curves of its devices."""
        curves = {}
        for name in store.names(record.run_id):
            if devices or not name.startswith(OF_DEVICES):
                found = store.points(record.run_id, name)
                curves[name] = list(zip(found.step, found.time, found.value, strict=True))
        return cls(record, curves)

    @property
    def hyperparameters(self) -> dict[str, Value]:
        """The recorded hyperparameters."""
        return dict(self.record.hyperparameters or {})

    @property
    def facts(self) -> dict[str, str]:
        """Other facts about the run, by name."""
        record = self.record
        return {"run id": record.run_id, "state": state_of(record), "engines": str(record.world_size), **settings_of(record)}

    def by_step(self) -> Iterator[tuple[int, float, dict[str, float]]]:
        """Yield steps in order, each with the time of its last value and the values by curve; of repeated values the last one counts."""
        steps: dict[int, tuple[float, dict[str, float]]] = {}
        for name, points in self.curves.items():
            for step, when, value in points:
                before, values = steps.get(step, (when, {}))
                steps[step] = max(before, when), values | {name: value}
        for step in sorted(steps):
            yield step, *steps[step]


def state_of(record: RunRecord) -> str:
    """Return the phase of a run, with its error if there is one."""
    return record.phase if record.error is None else f"{record.phase}: {record.error}"


def settings_of(record: RunRecord) -> dict[str, str]:
    """Return the options of a run and its package versions, by name."""
    options = {name: value for name, value in record.arguments.items() if value not in (None, False, "", [])}
    if isinstance(sweep := options.get("sweep"), dict):
        options["sweep"] = sweep.get("name", "")
    return {name: str(value) for name, value in (options | record.environment().get("packages", {})).items()}


def library(name: str, package: str | None = None) -> ModuleType:
    """Return a tool's module; raise a `UsageError` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = package or name.partition(".")[0]
        raise UsageError(f"The run is written with {package}, which is not installed: `pip install {package}`.") from None

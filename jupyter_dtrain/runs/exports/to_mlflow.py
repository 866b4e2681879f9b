"""Write a run to MLflow: its parameters, every point of its metrics at its own time, and its cell as an artifact."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ...errors import UsageError
from .exported import ExportedRun, library

_METRICS, _PARAMS = 1000, 100  # MLflow's limits for one request
_REFUSED = re.compile(r"[^\w\-. :/]")
_LONGEST = 6000


def write(run: ExportedRun, *, tracking_uri: str | None, experiment: str) -> str:
    """Write `run` to MLflow's store, by default the current one, as a run of `experiment`; return its id there."""
    mlflow, entities = library("mlflow"), library("mlflow.entities")
    client: Any = mlflow.MlflowClient(tracking_uri=tracking_uri)
    found = client.get_experiment_by_name(experiment)
    experiment_id = found.experiment_id if found is not None else client.create_experiment(experiment)
    record = run.record
    tags = {f"dtrain.{name}": text[:_LONGEST] for name, text in run.facts.items()} | {f"dtrain.tag.{tag}": "" for tag in record.tags}
    tags = {_REFUSED.sub("_", name): text for name, text in tags.items()}
    made = client.create_run(experiment_id, start_time=_ms(record.started), tags=tags, run_name=record.name).info.run_id
    params = [entities.Param(_REFUSED.sub("_", name), str(value)[:_LONGEST]) for name, value in run.hyperparameters.items()]
    for some in _batches(params, _PARAMS):
        client.log_batch(made, params=some)
    names = {name: _REFUSED.sub("_", name) for name in run.curves}
    if len(set(names.values())) < len(names):
        raise UsageError(
            f"MLflow allows only letters, digits and _-. :/ in names, and without other characters two curves have one name: {list(names)}."
        )
    metrics = (entities.Metric(names[name], value, _ms(when), step) for name, points in run.curves.items() for step, when, value in points)
    for some in _batches(metrics, _METRICS):
        client.log_batch(made, metrics=some)
    client.log_text(made, record.cell(), "cell.py")
    if record.ended is not None or record.error is not None:
        status = {"finished": "FINISHED", "stopped": "KILLED", "pruned": "KILLED"}.get(record.phase, "FAILED")
        client.set_terminated(made, status, end_time=_ms(record.ended or record.started))
    return str(made)


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(items)
    while some := list(islice(left, size)):
        yield some


def _ms(seconds: float) -> int:
    return round(seconds * 1000)

"""The record of runs for a user's own code: a table of all, one run with its curves.

Values are those of the database, which the sidebar draws from: equal to the bit, and whole where the sidebar's are thinned. A run that
goes on is there up to its last second.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..protocol import CurveSummary, Value
from .curves import OF_DEVICES
from .detached_index import DEFAULT_FOLDER
from .output_log import read_output
from .record import RunRecord
from .store import RunStore

if TYPE_CHECKING:
    from .exports.exported import ExportedRun


@dataclass(frozen=True)
class RecordedRun:
    """One run of the record.

    Attributes
    ----------
    record : RunRecord
        Its name, phase, times, arguments and hyperparameters, which can be asked for here as well: ``run.name``.
    folder : Path
        Of all runs.
    """

    record: RunRecord
    folder: Path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "record":
            raise AttributeError(name)
        return getattr(self.record, name)

    def __repr__(self) -> str:
        return f"<{self.record.name}: {self.record.phase}, {self.record.run_id}>"

    @property
    def hyperparameters(self) -> dict[str, Value]:
        """What was found in the cell's objects, and what it gave by name."""
        return dict(self.record.hyperparameters or {})

    @property
    def cell(self) -> str:
        """The text of the cell."""
        return self.record.cell()

    @property
    def curves(self) -> list[str]:
        """The names of all curves, those of devices among them: ``device/0/utilization``."""
        with closing(RunStore(self.folder)) as store:
            return store.names(self.record.run_id)

    def points(self, curve: str) -> dict[str, list[Any]]:
        """Return the points of a curve as columns: ``step``, ``time`` in seconds since the epoch, ``value``."""
        with closing(RunStore(self.folder)) as store:
            return self._points(store, curve)

    def history(self, curve: str | None = None) -> Any:
        """Return the points of a curve, by default of all but those of devices, as a pandas DataFrame.

        A row is a point, with the name of its ``curve``, its ``step``, ``time`` in seconds since the epoch, and ``value``.

        Raises
        ------
        UsageError
            pandas is not installed, or there is no such curve.
        """
        pandas = _pandas()
        with closing(RunStore(self.folder)) as store:
            names = store.names(self.record.run_id)
            if curve is not None and curve not in names:
                raise UsageError(f"{self.record.name} has no curve {curve!r}; it has {', '.join(names) or 'none'}.")
            wanted = [curve] if curve is not None else [name for name in names if not name.startswith(OF_DEVICES)]
            columns: dict[str, list[Any]] = {"curve": [], "step": [], "time": [], "value": []}
            for name in wanted:
                points = self._points(store, name)
                columns["curve"] += [name] * len(points["step"])
                for column, values in points.items():
                    columns[column] += values
        types = {"curve": "object", "step": "int64", "time": "float64", "value": "float64"}
        return pandas.DataFrame(columns).astype(types)

    def output(self, rank: int = 0) -> str:
        """Return what a rank has printed, the end of it where that is more than some megabytes.

        Ranks other than 0 have something with ``--output all`` alone.
        """
        return read_output(self.record.folder, rank, limit=None).text

    def rerun(self, *, engines: int | None = None, trust: bool = False) -> RecordedRun:
        """Run the cell again in this notebook, with the values, options and random numbers that it began with then.

        What it began with and what it makes of it are put into the notebook under their names, as `%distribute resume` does, in a new
        kernel too. Files that it reads are those that are there now.

        Parameters
        ----------
        engines : int, optional
            By default as many as it had.
        trust : bool
            Run it even if the record was not written by you; this may execute arbitrary code.

        Returns
        -------
        RecordedRun
            The new run.

        Raises
        ------
        UsageError
            The record does not have the values that the cell began with, or this is no notebook.
        CheckpointError
            They are damaged, somebody else has written them, or this version of Python cannot read them.
        """
        # By name: this part knows no notebooks, which know all other parts.
        rerun = importlib.import_module(f"{__package__.rpartition('.')[0]}.notebook.reruns").rerun
        again: RecordedRun = rerun(self, engines=engines, trust=trust)
        return again

    @property
    def tags(self) -> list[str]:
        """What it is marked with, as the record has it now: `add_tags` and `remove_tags` change it."""
        with closing(RunStore(self.folder)) as store:
            return store.get_run(self.record.run_id).tags

    def add_tags(self, *tags: str) -> None:
        """Mark the run with `tags` besides those that it has."""
        self._tag([*self.tags, *tags])

    def remove_tags(self, *tags: str) -> None:
        """Take `tags` off the run; those that it does not have are ignored."""
        self._tag([tag for tag in self.tags if tag not in tags])

    def _tag(self, tags: list[str]) -> None:
        wanted = dict.fromkeys(tag.strip() for tag in tags)
        bad = [tag for tag in wanted if not tag or "," in tag]
        if bad:
            raise UsageError(f"{bad[0]!r} is no tag: a tag is a text without a comma.")
        with closing(RunStore(self.folder)) as store:
            store.tag_run(self.record.run_id, [*wanted])

    def to_html(self, path: str | Path) -> Path:
        """Write the run as one HTML file to share, which loads nothing from elsewhere; return its path.

        It has the facts, hyperparameters, metrics, curves, thinned to what can be seen, and the cell with the functions that it uses.
        """
        from .exports.to_html import page_of

        target = Path(path)
        with closing(RunStore(self.folder)) as store:
            target.write_text(page_of(store.get_run(self.record.run_id), store), encoding="utf-8")
        return target

    def to_tensorboard(self, logdir: str | Path = "runs", *, devices: bool = False) -> Path:
        """Write the run for TensorBoard into a folder below `logdir`; return that folder.

        Parameters
        ----------
        logdir : path
            What ``tensorboard --logdir`` is given.
        devices : bool
            Whether the curves of devices are written too.

        Raises
        ------
        UsageError
            tensorboard is not installed.
        """
        from .exports import to_tensorboard

        return to_tensorboard.write(self._exported(devices), Path(logdir))

    def to_mlflow(self, tracking_uri: str | None = None, *, experiment: str = "jupyter_dtrain", devices: bool = False) -> str:
        """Write the run to MLflow; return the id that it has there.

        Parameters
        ----------
        tracking_uri : str, optional
            By default the one that MLflow is set to.
        experiment : str
            It is made where there is none.
        devices : bool
            Whether the curves of devices are written too.

        Raises
        ------
        UsageError
            MLflow is not installed, or cannot have the names of the curves.
        """
        from .exports import to_mlflow

        return to_mlflow.write(self._exported(devices), tracking_uri=tracking_uri, experiment=experiment)

    def to_wandb(self, folder: str | Path = ".", *, project: str = "jupyter_dtrain", devices: bool = False) -> Path:
        """Write the run for Weights & Biases, offline; return the folder that ``wandb sync`` sends.

        Parameters
        ----------
        folder : path
            Its ``wandb`` is written to.
        project : str
        devices : bool
            Whether the curves of devices are written too.

        Raises
        ------
        UsageError
            wandb is not installed.
        """
        from .exports import to_wandb

        return to_wandb.write(self._exported(devices), Path(folder), project=project)

    def to_trackio(self, project: str = "jupyter_dtrain", *, devices: bool = False) -> str:
        """Write the run to trackio's database on this machine (``TRACKIO_DIR``); return the id that it has there.

        A run that is written again takes the place of what was written before.

        Parameters
        ----------
        project : str
            What ``trackio show --project`` is given.
        devices : bool
            Whether the curves of devices are written too.

        Raises
        ------
        UsageError
            trackio is not installed, or the run has no points.
        """
        from .exports import to_trackio

        return to_trackio.write(self._exported(devices), project=project)

    def _exported(self, devices: bool) -> ExportedRun:
        from .exports.exported import ExportedRun

        with closing(RunStore(self.folder)) as store:
            return ExportedRun.of(store.get_run(self.record.run_id), store, devices=devices)

    def _points(self, store: RunStore, name: str) -> dict[str, list[Any]]:
        found = store.points(self.record.run_id, name)
        return {"step": list(found.step), "time": list(found.time), "value": list(found.value)}


def find_run(run: str | None = None, folder: str | Path | None = None) -> RecordedRun:
    """Return a recorded run.

    Parameters
    ----------
    run : str, optional
        Its id, or its name: the last one of this name. By default the last run.
    folder : path, optional
        Where runs are recorded; by default ``dtrain-runs`` in the working directory.

    Raises
    ------
    UsageError
        There is none.

    Examples
    --------
    ``jupyter_dtrain.find_run("digits").history("loss").plot("step", "value")``
    """
    where = _folder(folder)
    with closing(RunStore(where)) as store:
        if run is not None:
            found = store.find_run(run)
        else:
            found = next(reversed(store.list_runs()), None)
        if found is None:
            raise UsageError(store.no_run(run) if run is not None else f"No runs are recorded in {where}.")
    return RecordedRun(found, where)


def table_of(folder: str | Path | None = None) -> Any:
    """Return the runs of a folder as a DataFrame; the package's own docstring says more."""
    pandas = _pandas()
    with closing(RunStore(_folder(folder))) as store:
        runs = store.list_runs()
        metrics = store.summaries() if runs else {}
    rows = [_row(run, metrics.get(run.number, [])) for run in runs]
    frame = pandas.DataFrame(rows, columns=[*dict.fromkeys(name for row in rows for name in row)] or [*_facts(None)])
    frame["started"] = pandas.to_datetime(frame["started"], unit="s", utc=True)
    return frame


def _row(run: RunRecord, metrics: Sequence[CurveSummary]) -> dict[str, Any]:
    values = {metric.name: math.nan if metric.last is None else metric.last for metric in metrics}
    row = _facts(run)
    values = {f"metric.{name}" if name in row else name: value for name, value in values.items()}
    for name, value in (run.hyperparameters or {}).items():
        row[f"config.{name}" if name in row or name in values else name] = value
    return row | values


def _facts(run: RunRecord | None) -> dict[str, Any]:
    """Return what is known of every run, by the names of columns."""
    return {
        "run_id": run and run.run_id,
        "name": run and run.name,
        "state": run and run.phase,
        "engines": run and run.world_size,
        "started": run and run.started,
        "seconds": None if run is None or run.ended is None else run.ended - run.started,
        "tags": run and ", ".join(run.tags),
        "error": run and run.error,
    }


def _folder(folder: str | Path | None) -> Path:
    return Path(folder if folder is not None else DEFAULT_FOLDER).absolute()


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise UsageError(
            "A table of runs is a pandas DataFrame, and pandas is not installed: `pip install pandas`. "
            "`jupyter_dtrain.find_run(NAME).points(CURVE)` returns a curve's columns without it."
        ) from None

"""The record of runs for a user's own code: a table of all, one run with its curves.

Values are those of the database, which the sidebar draws from: equal to the bit, and whole where the sidebar's are thinned. A run that
goes on is there up to its last second.
"""

from __future__ import annotations

import importlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..protocol import Value
from .data_frames import columns_of, points_of
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
            return columns_of(store, self.record.run_id, curve)

    def history(self, curve: str | None = None) -> Any:
        """Return the points of a curve, by default of all but those of devices, as a pandas DataFrame.

        A row is a point, with the name of its ``curve``, its ``step``, ``time`` in seconds since the epoch, and ``value``.

        Raises
        ------
        UsageError
            pandas is not installed, or there is no such curve.
        """
        with closing(RunStore(self.folder)) as store:
            return points_of(self.record, store, curve)

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
            raise UsageError(f"{bad[0]!r} is not a tag: a tag is a string without commas.")
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

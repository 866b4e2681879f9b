"""Give the user's own code access to the record of runs: one run with its curves.

Values are read from the database, as the sidebar's are: equal to the last bit, and not thinned. A running run is there up to its last
second.
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
    """One recorded run.

    Attributes
    ----------
    record : RunRecord
        Its name, phase, times, arguments and hyperparameters, which are attributes of this object as well: ``run.name``.
    folder : Path
        Folder of all runs.
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
        """Hyperparameters that were found in the cell's objects, and those that the cell gave by name."""
        return dict(self.record.hyperparameters or {})

    @property
    def cell(self) -> str:
        """The text of the cell."""
        return self.record.cell()

    @property
    def curves(self) -> list[str]:
        """Names of all curves, including those of devices: ``device/0/utilization``."""
        with closing(RunStore(self.folder)) as store:
            return store.names(self.record.run_id)

    def points(self, curve: str) -> dict[str, list[Any]]:
        """Return the points of a curve as columns: ``step``, ``time`` in seconds since the epoch, ``value``."""
        with closing(RunStore(self.folder)) as store:
            return columns_of(store, self.record.run_id, curve)

    def history(self, curve: str | None = None) -> Any:
        """Return the points of a curve as a pandas DataFrame; by default, of all curves except those of devices.

        A row is a point, with the name of its ``curve``, its ``step``, ``time`` in seconds since the epoch, and ``value``.

        Raises
        ------
        UsageError
            pandas is not installed, or the curve does not exist.
        """
        with closing(RunStore(self.folder)) as store:
            return points_of(self.record, store, curve)

    def output(self, rank: int = 0) -> str:
        """Return the output of a rank, the last megabytes if it is longer.

        Output of ranks other than 0 is kept only with ``--output all``.
        """
        return read_output(self.record.folder, rank, limit=None).text

    def rerun(self, *, engines: int | None = None, trust: bool = False) -> RecordedRun:
        """Run the cell again in this notebook, with the values, options and random numbers of this run's start.

        The values that it starts with and those that it makes are bound in the notebook under their names, as by `%distribute resume`, also
        in a new kernel. Files that it reads are read as they are now.

        Parameters
        ----------
        engines : int, optional
            Number of engines; by default that of this run.
        trust : bool
            Run it even if the record was not written by you; this may execute arbitrary code.

        Returns
        -------
        RecordedRun
            The new run.

        Raises
        ------
        UsageError
            The record lacks the values that the cell started with, or this process is no notebook.
        CheckpointError
            The values are damaged, someone else has written them, or this version of Python cannot read them.
        """
        # Imported by name: `runs` must not depend on `notebook`, which depends on all parts.
        rerun = importlib.import_module(f"{__package__.rpartition('.')[0]}.notebook.reruns").rerun
        again: RecordedRun = rerun(self, engines=engines, trust=trust)
        return again

    @property
    def tags(self) -> list[str]:
        """Tags of the run, as currently recorded; `add_tags` and `remove_tags` change them."""
        with closing(RunStore(self.folder)) as store:
            return store.get_run(self.record.run_id).tags

    def add_tags(self, *tags: str) -> None:
        """Add `tags` to the run."""
        self._tag([*self.tags, *tags])

    def remove_tags(self, *tags: str) -> None:
        """Remove `tags` from the run; missing ones are ignored."""
        self._tag([tag for tag in self.tags if tag not in tags])

    def _tag(self, tags: list[str]) -> None:
        wanted = dict.fromkeys(tag.strip() for tag in tags)
        bad = [tag for tag in wanted if not tag or "," in tag]
        if bad:
            raise UsageError(f"{bad[0]!r} is not a tag: a tag is a string without commas.")
        with closing(RunStore(self.folder)) as store:
            store.tag_run(self.record.run_id, [*wanted])

    def to_html(self, path: str | Path) -> Path:
        """Write the run as one self-contained HTML file to share; return its path.

        The page has the facts, hyperparameters, metrics and thinned curves, and the cell with the functions that it uses.
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
            Folder for ``tensorboard --logdir``.
        devices : bool
            Whether to write the curves of devices too.

        Raises
        ------
        UsageError
            tensorboard is not installed.
        """
        from .exports import to_tensorboard

        return to_tensorboard.write(self._exported(devices), Path(logdir))

    def to_mlflow(self, tracking_uri: str | None = None, *, experiment: str = "jupyter_dtrain", devices: bool = False) -> str:
        """Write the run to MLflow; return its id there.

        Parameters
        ----------
        tracking_uri : str, optional
            By default MLflow's current one.
        experiment : str
            Name of the experiment, which is created if necessary.
        devices : bool
            Whether to write the curves of devices too.

        Raises
        ------
        UsageError
            MLflow is not installed, or does not accept the names of the curves.
        """
        from .exports import to_mlflow

        return to_mlflow.write(self._exported(devices), tracking_uri=tracking_uri, experiment=experiment)

    def to_wandb(self, folder: str | Path = ".", *, project: str = "jupyter_dtrain", devices: bool = False) -> Path:
        """Write the run for Weights & Biases, offline; return the folder for ``wandb sync``.

        Parameters
        ----------
        folder : path
            Folder whose ``wandb`` subfolder is written to.
        project : str
        devices : bool
            Whether to write the curves of devices too.

        Raises
        ------
        UsageError
            wandb is not installed.
        """
        from .exports import to_wandb

        return to_wandb.write(self._exported(devices), Path(folder), project=project)

    def to_trackio(self, project: str = "jupyter_dtrain", *, devices: bool = False) -> str:
        """Write the run to trackio's database on this machine (``TRACKIO_DIR``); return its id there.

        A run that is written again replaces its earlier copy.

        Parameters
        ----------
        project : str
            Name of the project for ``trackio show --project``.
        devices : bool
            Whether to write the curves of devices too.

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

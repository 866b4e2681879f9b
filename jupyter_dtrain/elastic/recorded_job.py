"""A recorded cell to run again from its beginning, with the values, options and RNG states of the first time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..checkpoint.folder import CheckpointFolder
from ..checkpoint.inputs import TRUSTING, RunInputs
from ..checkpoint.secrets_at_rest import missing_secrets_text, with_secrets
from ..cluster.launchers import find_launcher
from ..cluster_options import ClusterOptions
from ..engine.task import Task
from ..errors import UsageError
from ..options import RunOptions
from ..runs.record import RunRecord
from ..serialization.pickler import Packed
from ..transport.base import BlobStore
from ..transport.parcel import from_parcel
from .job import CellJob


class RecordedJob:
    """A recorded run, as it began.

    Parameters
    ----------
    record : RunRecord
    engines : int, optional
        Number of engines; by default as many as the run had.
    trusted : bool
        Load it even if not signed by you; this may execute arbitrary code.

    Attributes
    ----------
    packed : Packed, optional
        The cell's input values, after :meth:`job`.

    Raises
    ------
    UsageError
        The record does not have the cell's input values.
    CheckpointError
        It is not signed by you, it is damaged, or this version cannot read it.
    """

    def __init__(self, record: RunRecord, *, engines: int | None = None, trusted: bool = False) -> None:
        self._record, self._engines, self._trusted = record, engines, trusted
        self._inputs = RunInputs(record.folder)
        self._checkpoints = CheckpointFolder(record.folder, trusting=TRUSTING)
        self._task: Task | None = self._inputs.read(trusted=trusted) if self._inputs.exist else None
        if self._task is None and not self._checkpoints.newest_first():
            raise UsageError(
                f"The record of {record.name} does not have the values that its cell began with, so it cannot be run again: they are kept "
                "up to 64 MiB, and more with `%%distribute --keep-inputs always`. Make them in this notebook and run the cell by hand: "
                "`print(run.cell)` shows it."
            )
        self.packed: Packed | None = None

    @property
    def cluster(self) -> ClusterOptions:
        """Options of the engines to run it on."""
        if self._task is None:  # its options lie with the buffers of its checkpoints
            return ClusterOptions(num_engines=self._engines or self._record.world_size)
        before = self._task.options.cluster
        as_before = None if find_launcher(before.launcher).hosts_say_how_many else self._record.world_size
        return replace(before, num_engines=self._engines or before.num_engines or as_before, part=(0, 1))

    @property
    def differs(self) -> str:
        """Package versions that differ from the run's; empty if none do."""
        return self._inputs.other_versions if self._task is not None else self._checkpoints.other_versions()

    def job(self, blobs: BlobStore, say: Callable[[str], None]) -> CellJob:
        """Return the cell with its values stored in `blobs`; `say` is told which secrets are missing."""
        if self._task is None:
            task = self._checkpoints.read_task(blobs, trusted=self._trusted)
        else:
            task = self._task
            self._inputs.copy_to(blobs)
        task = with_secrets(task)
        if task.surroundings.withheld:
            say(missing_secrets_text(task.surroundings.withheld))
        self.packed = from_parcel(task.parcel, blobs)
        fields = task.shared() | {"options": self._options(task.options)}
        record = self._record
        return CellJob(**fields, cell=record.cell(), origin=record.origin(), functions=record.functions())

    def _options(self, options: RunOptions) -> RunOptions:
        """Return the run's options for this kernel, with the number of engines asked for."""
        elastic = options.elastic if self._engines in (None, options.cluster.num_engines) else None
        return replace(options, cluster=self.cluster, elastic=elastic, detach=False)

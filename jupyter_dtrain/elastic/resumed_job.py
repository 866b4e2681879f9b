"""A run that has ended, to resume from one of its checkpoints, with any number of engines on this or other hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..checkpoint.checkpoint_commands import keep_facts
from ..checkpoint.folder import FILE_LOG, CheckpointFolder
from ..checkpoint.host_snapshots import snapshots_on
from ..checkpoint.metadata import Intact, Wanted, step_of
from ..checkpoint.secrets_at_rest import missing_secrets_text, part_with_secrets, with_secrets
from ..checkpoint.snapshot_index import SnapshotKeeper
from ..cluster_options import ClusterOptions
from ..engine.side_effects.journal_entries import go_on_from
from ..engine.task import Resume, Task
from ..errors import CheckpointError, UsageError
from ..options import RunOptions
from ..parallel_dims import ParallelDims
from ..protocol import RUN_PHASES_ENDED
from ..runs.detached_index import address_of, forget_results
from ..runs.persister import Recording
from ..runs.record import RunRecord
from ..runs.store import RunStore
from ..serialization.pickler import Packed
from ..strategies import DEFAULT, Feature, find
from ..transport.blob_store import BlobFolder
from ..transport.parcel import from_parcel
from ..transport.sending import Sending
from .main_thread_output import Output
from .worker_group import WorkerGroup

FILES_STAY = "Files that the cell has written stay as they are where rank 0 was: lines that it wrote after this checkpoint are not removed."


class ResumedJob:
    """A recorded run, and the checkpoint that it resumes from.

    Parameters
    ----------
    store : RunStore
    run_id : str, optional
        By default the last run that has a checkpoint and has failed or was stopped.
    step : int or "best", optional
        Step of the checkpoint, or ``"best"`` for that of a run with ``--best``; by default the newest that is intact.
    trusted : bool
        Load it even if not signed by you; this may execute arbitrary code.
    strategy, mesh : str, ParallelDims, optional
        By default the run's own. A checkpoint holds full state, so any strategy can resume it.
    output : Output

    Attributes
    ----------
    record : RunRecord

    Raises
    ------
    CheckpointError
        There is no intact checkpoint, or it is not signed by you.
    """

    def __init__(
        self,
        store: RunStore,
        run_id: str | None,
        *,
        step: Wanted | None,
        trusted: bool,
        strategy: str | None = None,
        mesh: ParallelDims | None = None,
        output: Output,
    ) -> None:
        if mesh is not None:
            strategy = mesh.strategy_of(strategy or DEFAULT)
        self._mesh = mesh
        self._strategy = None if strategy is None else find(strategy)
        if self._strategy is not None:
            self._strategy.require(Feature.SNAPSHOT, "%distribute resume")
        self.record = record = _resumable(store, run_id)
        self._store, self._trusted, self._output = store, trusted, output
        self._folder = folder = CheckpointFolder(record.folder)
        if not trusted:
            folder.check_origin()
        intact: Intact | None
        wanted = step_of(step, folder.newest_first(), run=record.name)
        if wanted is not None:
            intact = folder.intact(wanted, trusted=trusted)
        else:
            intact, complaints = folder.newest_intact(trusted=trusted)
            if intact is None:
                raise CheckpointError(" ".join([f"{record.run_id} has no intact checkpoint: run its cell again.", *complaints]))
            for complaint in complaints:
                output.say(f"{complaint} The one before it is used.")
        self._intact = intact
        if differs := folder.other_versions():
            output.say(f"{record.name} was written with {differs}: results may differ in the last digits.")

    def start(
        self, group: WorkerGroup, options: ClusterOptions, *, check: Callable[[RunOptions], None]
    ) -> tuple[Task, SnapshotKeeper, Recording, Packed]:
        """Prepare the run on the engines of `group`, which were started with `options`.

        Parameters
        ----------
        check : callable
                Raises a `UsageError` for options of the run that those engines cannot have.

        Returns
        -------
        task : Task
        keeper : SnapshotKeeper
        recording : Recording
        values : Packed
                The cell's input values by name, and the objects that the results refer to.
        """
        record, cluster, output, checkpoint = self.record, group.cluster, self._output, self._intact.checkpoint
        group.leave()  # its store holds orders to earlier runs
        blobs = BlobFolder(cluster.blob_dir)
        kept = with_secrets(self._folder.read_task(blobs, trusted=self._trusted))
        if self._strategy is not None:
            before = kept.options
            had = before.cluster if before.mesh is None and self._mesh is None else replace(before.cluster, num_engines=None)
            shard = before.shard if Feature.NAMED_SHARDS in self._strategy.supports else ()
            changed = replace(before, strategy=self._strategy.name, mesh=self._mesh, cluster=had, shard=shard)
            kept = replace(kept, options=changed, strategy=self._strategy)
        missing = set(kept.surroundings.withheld)
        engines = options if kept.options.mesh is None else replace(options, num_engines=group.num_ranks)
        check(replace(_among(kept.options, group.num_ranks), cluster=engines, detach=False))
        snapshots = snapshots_on(cluster, f".{record.run_id}")
        newest = self._folder.read(self._intact, snapshots, number=1, change=partial(part_with_secrets, missing=missing))
        if missing:
            output.say(missing_secrets_text(missing))
        recording = Recording.resume(self._store, record, world_size=group.num_ranks, say=output.say)
        recording.go_back(checkpoint.step, before=partial(keep_facts, record.folder, checkpoint.step))
        recording.recorder.note_checkpoint(checkpoint.step)
        output.say(f"{record.name}: resuming from step {checkpoint.step}.")
        file_log = record.folder / FILE_LOG
        with recording.failing("broken off"):
            task = replace(
                kept,
                world_size=group.num_ranks,
                device=cluster.device_plans[0].device,
                blob_folder=blobs.address,
                snapshot_folder=snapshots.address,
                file_log=cluster.files.journal(file_log, record.run_id),
                options=_among(kept.options, group.num_ranks),
                resume=Resume(number=1, world_size=checkpoint.world_size, seen=()),
            )
            if any(log is not None and log.name != FILE_LOG for log in (task.file_log, kept.file_log)):
                output.say(FILES_STAY)
            keeper = SnapshotKeeper(snapshots, task.world_size, keep=kept.options.keep_checkpoints, newest=newest)
            values = from_parcel(task.parcel, blobs)
            cluster.files.send(task.parcel.keys, Sending(output.progress))
            if not keeper.publish():
                raise CheckpointError(f"The checkpoint of {record.name} could not be sent to the hosts: resume it again.")
        go_on_from(file_log, newest.number, step=newest.step, place=newest.place)
        forget_results(record.folder)
        return task, keeper, recording, values


def _resumable(store: RunStore, run_id: str | None) -> RunRecord:
    if run_id is not None:
        found = store.run_called(run_id)
        if found.phase not in RUN_PHASES_ENDED:
            follow = f"`%distribute attach {run_id}` follows it" if address_of(found.folder) is not None else "stop it there first"
            raise UsageError(f"{run_id} is still running in another process: {follow}.")
        return found
    for run in reversed(store.list_runs()):
        if run.phase in ("failed", "stopped") and CheckpointFolder(run.folder).newest_first():
            return run
    raise CheckpointError("No unfinished run in this folder has a checkpoint: run the cell.")


def _among(options: RunOptions, num_ranks: int) -> RunOptions:
    """Return the options for a run that resumes with `num_ranks` ranks; an elastic run may grow back to that number."""
    if options.elastic is None:
        return options
    cluster = replace(options.cluster, num_engines=None if options.cluster.hosts else num_ranks)
    return replace(options, elastic=(min(options.elastic[0], num_ranks), num_ranks), cluster=cluster)

"""A cell's run from the notebook's values to its results: on fresh engines' ranks, or where a checkpoint has left it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..checkpoint.folder import FILE_LOG, CheckpointFolder
from ..checkpoint.host_snapshots import snapshots_on
from ..checkpoint.inputs import RunInputs, write_inputs
from ..checkpoint.metadata import Checkpoint, Wanted
from ..checkpoint.snapshot_index import SnapshotKeeper
from ..checkpoint.writer import CheckpointWriter
from ..cluster_options import ClusterOptions
from ..engine.task import Outcome, Task
from ..errors import ClusterError, StoreError
from ..parallel_dims import ParallelDims
from ..protocol import Notice
from ..protocol.bus import Bus
from ..runs.persister import Recording
from ..runs.recorder import RunRecorder
from ..runs.store import RunStore
from ..serialization.pickler import Packed
from ..strategies import Feature
from ..system.interpreter import interrupted_before_the_cell
from ..transport.base import BlobStore
from ..transport.blob_store import HASHED, BlobFolder, Sending, bytes_of
from ..transport.parcel import from_parcel
from .agent import Agent
from .engine_pool import STARTING, EnginePool
from .failed_run import FailedRun
from .failure_report import lost_engines, phase_of
from .job import CellJob
from .main_thread_output import Output
from .resumed_job import ResumedJob
from .run_events import Interrupted, RanksChanged, WentBack
from .run_recording import record
from .worker_group import WorkerGroup, WorkerResult

ON_ONE_ENGINE = "This cell shards nothing (it draws no batches from a DataLoader), so one engine runs it."
BY_ITS_ROWS = " `--split-inputs` shards model inputs along dim 0."


@dataclass(frozen=True)
class RunResult:
    """What a run left.

    Attributes
    ----------
    ends : list of WorkerResult
        How each rank ended, in rank order.
    returned : Packed, optional
        What rank 0 sent back.
    lost : ClusterError, optional
        To be raised where an engine was lost.
    interrupted : bool
        Whether there was a keyboard interrupt.
    task : Task
        What the ranks were given.
    taken : callable
        To be called when the results are in the notebook.
    """

    ends: list[WorkerResult]
    returned: Packed | None
    lost: ClusterError | None
    interrupted: bool
    task: Task
    taken: Callable[[], None] = lambda: None

    @property
    def first(self) -> Outcome | None:
        """The outcome of rank 0, which holds the results."""
        return self.ends[0].outcome


class Runner:
    """Runs one cell at a time. Its methods but :meth:`stop` belong to the thread that runs the notebook's cells.

    `supervisor` looks after the cell that is running, ``None`` where none is. `failed` is the last run, if its cell has failed.

    Parameters
    ----------
    engines : EnginePool
    store : RunStore
    on_begin : callable
        Told of the recorder of each run.
    on_news : callable
        Called, on any thread, when the recorder has something new.
    others : callable, optional
        Returns other folders of buffers: what lies there is not stored again. So that it is known, all are named by what they hold.
    pruned_at : callable
        Asked when a run has ended: the step after which a search has stopped it, as its record is to have it; ``None``: none has.
    """

    def __init__(
        self,
        engines: EnginePool,
        store: RunStore,
        *,
        on_begin: Callable[[RunRecorder], None],
        on_news: Callable[[], None],
        others: Callable[[], Sequence[Path]] | None = None,
        pruned_at: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._engines, self._store, self._pruned_at = engines, store, pruned_at
        self._on_begin, self._on_news, self._others = on_begin, on_news, others
        self.supervisor: Agent | None = None
        self.failed: FailedRun | None = None
        self._blobs: BlobFolder | None = None  # which knows what it has stored for the cells before

    def stop(self) -> str | None:
        """Ask the run to stop, and return how it does; ``None``: there is none. Any thread may call this."""
        supervisor = self.supervisor
        return None if supervisor is None else supervisor.stop()

    def run(self, options: ClusterOptions, work: Callable[[BlobStore], CellJob], *, output: Output) -> RunResult:
        """Run a cell on the engines and return how it ended.

        Parameters
        ----------
        options : ClusterOptions
            The engines.
        work : callable
            Called when they are there: puts the notebook's values where they see them, and returns the cell.
        """
        group = self._group(options, options.num_engines, output)
        blobs = self._blobs_in(group.cluster.blob_dir)
        with interrupted_before_the_cell("while the cell's values were sent"):
            given = work(blobs)
        keys = given.parcel.keys
        blobs.trim(keep=keys, limit=sum(map(bytes_of, keys)) + blobs.limit)
        group.cluster.files.keep(keys)
        with interrupted_before_the_cell("while the cell's values were sent"):
            group.cluster.files.send(keys, Sending(output.progress))
        return self._run(group, given, blobs, output)

    def _blobs_in(self, folder: Path) -> BlobFolder:
        if self._others is not None:
            return BlobFolder(folder, self._others())
        if self._blobs is None or self._blobs.path != folder:
            self._blobs = BlobFolder(folder, hashed=HASHED, watched=True)
        return self._blobs

    def _run(self, group: WorkerGroup, work: CellJob, blobs: BlobStore, output: Output) -> RunResult:
        options = work.options
        is_narrowed = work.on_one_engine and group.num_ranks > 1
        if is_narrowed:
            group = self._engines.group(group.cluster, 1)
        recording = Recording.start(
            self._store,
            name=options.name,
            cell=work.cell,
            world_size=group.num_ranks,
            arguments=work.arguments(),
            origin=work.origin,
            facts=work.facts(),
            functions=work.functions,
            hyperparameters=work.hyperparameters(),
            detached=options.detach,
            say=output.say,
        )
        if options.detach and recording.folder is None:
            raise StoreError(
                f"A run with --detach keeps its results in {self._store.folder}, which cannot be written: give the notebook a folder "
                "that can be, or omit --detach."
            )
        with recording.failing("broken off"):
            if is_narrowed:
                text = ON_ONE_ENGINE + (BY_ITS_ROWS if work.has_models else "")
                output.say(text)
                recording.recorder.apply(Notice(rank=0, text=text))
            task = work.task(group, blobs, run_id=recording.run_id)
            folder, cluster = recording.folder, group.cluster
            task = replace(task, file_log=cluster.files.journal(folder / FILE_LOG, recording.run_id) if folder is not None else None)
            keeper = SnapshotKeeper(snapshots_on(cluster, task.snapshot_folder.name), task.world_size, keep=options.keep_checkpoints)
            # Trials are compared by a number that may be there at their ends alone.
            writer = self._writer(recording, task, output, expects_best=not options.vary)
        if folder is not None:
            RunInputs(folder).keep(task, blobs)
        try:
            return self._carry_out(group, task, keeper, writer, recording, output)
        finally:
            if folder is not None:  # a kernel that has the results of a detached run may want to run it again
                write_inputs(folder, wait=options.detach)
            if work.strategy.owns_process_group and not options.detach:
                # What libraries know of the ranks outlives the process group: the next cell is to find engines that have met none.
                self._engines.begin_restart(group.cluster, range(group.num_ranks))

    def resume(
        self,
        run_id: str | None,
        options: ClusterOptions,
        *,
        step: Wanted | None = None,
        trusted: bool = False,
        strategy: str | None = None,
        mesh: ParallelDims | None = None,
        output: Output,
    ) -> tuple[RunResult, Packed]:
        """Let a run go on whose kernel has died, or that was stopped, from a checkpoint.

        Parameters
        ----------
        run_id : str, optional
            By default the last run that has one and has not finished.
        options : ClusterOptions
            Its engines; by default as many as it had.
        step : int or "best", optional
            Of the checkpoint, or ``"best"`` for that of a run with ``--best``; by default the newest that is intact.
        trusted : bool
            Load it even if not signed by you; this may execute arbitrary code.
        strategy, mesh : str, ParallelDims, optional
            By default its own. A checkpoint has what all of them need.

        Returns
        -------
        result : RunResult
        values : Packed
            What the cell began with: its values by name, and the objects that the results refer to.

        Raises
        ------
        CheckpointError
            There is no checkpoint to go on from, or somebody else has written it.
        """
        if mesh is not None:
            options = replace(options, num_engines=mesh.engines_of(options.num_engines))
        job = ResumedJob(self._store, run_id, step=step, trusted=trusted, strategy=strategy, mesh=mesh, output=output)
        num_ranks = options.num_engines or self._engines.num_engines_for(options, job.record.world_size)
        group = self._group(options, num_ranks, output)
        task, keeper, recording, values = job.start(group, options, check=self._engines.check)
        with recording.failing("broken off"):
            writer = self._writer(recording, task, output)
        return self._carry_out(group, task, keeper, writer, recording, output), values

    def _carry_out(
        self,
        group: WorkerGroup,
        task: Task,
        keeper: SnapshotKeeper,
        writer: CheckpointWriter | None,
        recording: Recording,
        output: Output,
    ) -> RunResult:
        recorder = recording.recorder
        interrupted = False

        def on_tick() -> None:
            recording.tick()
            output.show_run(recorder)

        def on_interrupt(_: Interrupted) -> None:
            nonlocal interrupted
            interrupted = True
            recorder.set_phase("stopping")
            how = "stopping after this step" if task.strategy.counts_steps else "the cell leaves where it is, on all engines"
            output.say(f"Interrupted: {how}. Interrupt again to abort now.")

        def renew(lost: WorkerGroup) -> WorkerGroup:
            return self._engines.group(self._engines.renew(lost.cluster, on_progress=output.progress), lost.num_ranks)

        events = Bus()
        record(events, recording, on_news=self._on_news)
        events.subscribe(RanksChanged, lambda _: self._engines.show())
        events.subscribe(Interrupted, on_interrupt)
        supervisor = Agent(group, keeper=keeper, writer=writer, output=output, events=events, renew=renew)
        self._on_begin(recorder)
        self.supervisor, self.failed = supervisor, None
        output.show_run(recorder)
        try:
            with recording.failing("broken off"):
                ends = supervisor.supervise(task, on_tick=on_tick)
                if (pruned_at := self._pruned_at()) is not None:
                    events.publish(WentBack(step=pruned_at))
            phase, error = ("stopped", None) if supervisor.interrupted else phase_of(ends)
            recording.finish(*((phase, error) if pruned_at is None else ("pruned", None)))
        finally:
            self.supervisor = None
            self._on_news()
            output.show_run(recorder)
        first, cluster = ends[0].outcome, supervisor.cluster
        self.failed = FailedRun(task, cluster, ends, restart=self._engines.begin_restart)
        if first is not None and first.parcel is not None:
            cluster.files.fetch(first.parcel.keys, 0)
        # Mapped here: what is mapped outlives the folder, which goes with a cluster that has lost an engine.
        returned = from_parcel(first.parcel, BlobFolder(cluster.blob_dir)) if first is not None and first.parcel is not None else None
        lost = lost_engines(ends, cluster, recorder.devices()) if not supervisor.interrupted else None
        left = [rank for rank in supervisor.restarts.close() if rank < len(cluster.engines)]
        killed = [end.rank for end in ends if end.killed] if not supervisor.interrupted else cluster.missing_ranks()
        failed = [end.rank for end in ends if end.outcome is not None and end.outcome.device_failed]
        if lost is not None or not cluster.controller_alive:
            self._engines.stop(is_lost=True)
        elif left or killed or failed:
            if left:
                output.say(f"The run has ended before {_engines_of(left)} restarted: that is done now.")
            self._engines.begin_restart(cluster, sorted({*left, *killed, *failed}))
        elif supervisor.interrupted:
            self._engines.show()  # an engine may have taken the place of another just before
        return RunResult(ends, returned, lost, interrupted or supervisor.interrupted or supervisor.pressed, task)

    def _group(self, options: ClusterOptions, num_ranks: int | None, output: Output) -> WorkerGroup:
        """Return the engines of a run, started and with torch imported."""
        cluster = self._engines.start(replace(options, num_engines=num_ranks), on_progress=output.progress)
        if not cluster.warm:  # an interrupt of that import would be lost, and a cell that waits behind it could not be stopped
            output.progress("the engines import torch")
            with interrupted_before_the_cell(STARTING):
                cluster.wait_warm(options.start_timeout)
            count = len(cluster.engine_ids)
            output.progress(f"{count} engine{'' if count == 1 else 's'} ready")
        return self._engines.group(cluster, num_ranks or len(cluster.engine_ids))

    @staticmethod
    def _writer(recording: Recording, task: Task, output: Output, *, expects_best: bool = True) -> CheckpointWriter | None:
        """Return what writes checkpoints into the run's folder, if it has one and there are any."""
        folder = recording.folder
        if folder is None or Feature.SNAPSHOT not in task.strategy.supports:
            return None

        def on_written(checkpoint: Checkpoint) -> None:
            recording.recorder.note_checkpoint(checkpoint.step)

        return CheckpointWriter(CheckpointFolder(folder), task, say=output.say, on_written=on_written, expects_best=expects_best)


def _engines_of(ranks: list[int]) -> str:
    told = ", ".join(map(str, ranks))
    return f"the engine of rank {told} was" if len(ranks) == 1 else f"the engines of ranks {told} were"

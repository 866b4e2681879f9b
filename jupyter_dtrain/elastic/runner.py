"""Run a cell from the notebook's values to its results, from its beginning or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..checkpoint.folder import FILE_LOG
from ..checkpoint.host_snapshots import snapshots_on
from ..checkpoint.inputs import RunInputs, write_inputs
from ..checkpoint.metadata import Wanted
from ..checkpoint.snapshot_index import SnapshotKeeper
from ..checkpoint.writer import CheckpointWriter
from ..cluster_options import ClusterOptions
from ..engine.task import Task
from ..errors import StoreError
from ..parallel_dims import ParallelDims
from ..protocol import Notice
from ..protocol.bus import Bus
from ..runs.persister import Recording
from ..runs.recorder import RunRecorder
from ..runs.store import RunStore
from ..serialization.pickler import Packed
from ..system.interpreter import interrupted_before_the_cell
from ..transport.base import BlobStore
from ..transport.blob_store import HASHED, BlobFolder, bytes_of
from ..transport.sending import Sending
from .agent import Agent
from .engine_pool import EnginePool
from .engine_start import start_warm
from .failed_run import FailedRun
from .failure_report import phase_of
from .job import CellJob
from .main_thread_output import Output
from .resumed_job import ResumedJob
from .run_events import Interrupted, RanksChanged, WentBack
from .run_recording import record, writer_of
from .run_result import RunResult, left_by
from .worker_group import WorkerGroup

ON_ONE_ENGINE = "This cell shards nothing (it draws no batches from a DataLoader), so one engine runs it."
BY_ITS_ROWS = " `--split-inputs` shards model inputs along dim 0."


class Runner:
    """Run one cell at a time. All methods but :meth:`stop` belong to the thread that runs the notebook's cells.

    Parameters
    ----------
    engines : EnginePool
    store : RunStore
    on_begin : callable
        Called with the recorder of each run.
    on_news : callable
        Called, on any thread, when the recorder has something new.
    others : callable, optional
        Returns other folders of buffers, whose contents are not stored again. All buffers are then named by content hash.
    pruned_at : callable
        Called after a run: returns the step at which a search pruned it, for the record; ``None`` if none did.

    Attributes
    ----------
    supervisor : Agent, optional
        Of the cell that is running.
    failed : FailedRun, optional
        The last run.
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
        self._blobs: BlobFolder | None = None  # remembers what earlier cells have stored

    def stop(self) -> str | None:
        """Ask the run to stop and return a sentence for the user; ``None`` if there is no run. Any thread may call this."""
        supervisor = self.supervisor
        return None if supervisor is None else supervisor.stop()

    def run(self, options: ClusterOptions, work: Callable[[BlobStore], CellJob], *, output: Output) -> RunResult:
        """Run a cell on the engines and return its result.

        Parameters
        ----------
        options : ClusterOptions
            The engines.
        work : callable
            Called once the engines are there: stores the notebook's values in the given store, and returns the cell.
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
                output.say(text := ON_ONE_ENGINE + (BY_ITS_ROWS if work.has_models else ""))
                recording.recorder.apply(Notice(rank=0, text=text))
            task = work.task(group, blobs, run_id=recording.run_id)
            folder, cluster = recording.folder, group.cluster
            task = replace(task, file_log=cluster.files.journal(folder / FILE_LOG, recording.run_id) if folder is not None else None)
            keeper = SnapshotKeeper(snapshots_on(cluster, task.snapshot_folder.name), task.world_size, keep=options.keep_checkpoints)
            # Trials are compared by a curve whose last point may be logged only at the end.
            writer = writer_of(recording, task, output, expects_best=not options.vary)
        if folder is not None:
            RunInputs(folder).keep(task, blobs)
        try:
            return self._carry_out(group, task, keeper, writer, recording, output)
        finally:
            if folder is not None:  # a kernel that takes the results of a detached run may run it again
                write_inputs(folder, wait=options.detach)
            if work.strategy.owns_process_group and not options.detach:
                # Libraries keep state of the process group after it is destroyed: the next cell needs fresh engines.
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
        """Resume a run from a checkpoint after its kernel has died or it was stopped.

        Parameters
        ----------
        run_id : str, optional
            By default the last run that has a checkpoint and has failed or was stopped.
        options : ClusterOptions
            The engines; by default as many as the run had.
        step : int or "best", optional
            Step of the checkpoint, or ``"best"`` for that of a run with ``--best``; by default the newest that is intact.
        trusted : bool
            Load it even if not signed by you; this may execute arbitrary code.
        strategy, mesh : str, ParallelDims, optional
            By default the run's own. A checkpoint holds full state, so any strategy can resume it.

        Returns
        -------
        result : RunResult
        values : Packed
            The cell's input values by name, and the objects that the results refer to.

        Raises
        ------
        CheckpointError
            There is no intact checkpoint, or it is not signed by you.
        """
        if mesh is not None and not options.hosts:
            options = replace(options, num_engines=mesh.engines_of(options.num_engines))
        job = ResumedJob(self._store, run_id, step=step, trusted=trusted, strategy=strategy, mesh=mesh, output=output)
        num_ranks = options.num_engines or self._engines.num_engines_for(options, job.record.world_size)
        group = self._group(options, num_ranks, output)
        task, keeper, recording, values = job.start(group, options, check=self._engines.check)
        with recording.failing("broken off"):
            writer = writer_of(recording, task, output)
        return self._carry_out(group, task, keeper, writer, recording, output), values

    def _carry_out(
        self, group: WorkerGroup, task: Task, keeper: SnapshotKeeper, writer: CheckpointWriter | None, recording: Recording, output: Output
    ) -> RunResult:
        recorder = recording.recorder

        def on_tick() -> None:
            recording.tick()
            output.show_run(recorder)

        def renew(lost: WorkerGroup) -> WorkerGroup:
            return self._engines.group(self._engines.renew(lost.cluster, on_progress=output.progress), lost.num_ranks)

        events = Bus()
        interrupts: list[Interrupted] = []
        record(events, recording, output, counts_steps=task.strategy.counts_steps, on_news=self._on_news)
        events.subscribe(RanksChanged, lambda _: self._engines.show())
        events.subscribe(Interrupted, interrupts.append)
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
        self.failed = FailedRun(task, supervisor.cluster, ends, restart=self._engines.begin_restart)
        return left_by(ends, task, supervisor, self._engines, recorder.devices(), output, interrupted=bool(interrupts))

    def _group(self, options: ClusterOptions, num_ranks: int | None, output: Output) -> WorkerGroup:
        """Return the engines of a run, started and with torch imported."""
        options = replace(options, num_engines=num_ranks)
        cluster = start_warm(lambda tell: self._engines.start(options, on_progress=tell), options.start_timeout, output.progress)
        return self._engines.group(cluster, num_ranks or len(cluster.engine_ids))

"""The session of a kernel: owns the cluster and its runs, and connects all parts.

Magics call it from the thread that runs cells; commands and telemetry of the sidebar come from other threads. One lock, held only
briefly, guards shared state. The cluster has a lock of its own, held while it starts or stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..checkpoint.metadata import Wanted
from ..cluster.base import Cluster
from ..cluster.devices import DevicePlan
from ..cluster.launchers import find_launcher
from ..cluster_options import ClusterOptions
from ..detached.detached_runs import DetachedRuns
from ..elastic.engine_pool import EnginePool
from ..elastic.failed_run import FailedRun
from ..elastic.job import CellJob
from ..elastic.main_thread_output import Output
from ..elastic.run_result import RunResult
from ..elastic.runner import Runner
from ..errors import UsageError
from ..options import RunOptions
from ..parallel_dims import ParallelDims
from ..protocol import Command, Reply
from ..runs.store import RunStore
from ..serialization.pickler import Packed
from ..transport.base import BlobStore
from ..trials.grid import Trial
from ..trials.pool import LanePool, lanes_for
from ..trials.pruning import Pruning
from ..trials.scheduler import Prepare, TrialScheduler
from .session_commands import SessionCommands
from .session_views import SessionViews


class Session(SessionViews):
    """The cluster of this kernel and what runs on it.

    Parameters
    ----------
    folder : Path, optional
        Where runs are recorded; by default ``dtrain-runs`` beside the notebook.
    engines : EnginePool, optional
        A pool whose engines are starting already.

    Attributes
    ----------
    remote : DetachedRuns
        Detached runs of this kernel or of others.
    """

    def __init__(self, folder: Path | None = None, engines: EnginePool | None = None) -> None:
        self._store = RunStore(folder) if folder is not None else RunStore()
        super().__init__(self._store.folder)
        self._is_running = False
        self._engines = engines or EnginePool()
        self._engines.on_update = self.note_cluster
        if engines is not None:
            self.note_cluster(engines.update)
        self._runner = Runner(self._engines, self._store, on_begin=self.start, on_news=lambda: self.on_news())
        self._lanes = LanePool(self._store, on_begin=self.start, on_cluster=self.note_cluster, on_news=lambda: self.on_news())
        self.remote = DetachedRuns(self._store, self)
        self._commands = SessionCommands(
            self._engines,
            self._runner,
            self._lanes,
            self,
            is_running=lambda: self._is_running,
            stop_run=self.stop_run,
            start_cluster=self.start_cluster,
            stop_cluster=self.stop_cluster,
        )

    @property
    def runs_folder(self) -> Path:
        """Where runs are recorded."""
        return self._store.folder

    # -- cluster -----------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster | None:
        """The running cluster, if there is one."""
        return self._engines.cluster

    def devices_for(self, options: ClusterOptions) -> Sequence[DevicePlan]:
        """Return the devices that a cell's engines have or would have; empty if hosts other than this one decide that."""
        return self._engines.devices_for(options)

    @property
    def running(self) -> bool:
        """Whether a cell is running on the engines, or is being prepared."""
        return self._is_running

    def start_cluster(self, options: ClusterOptions, *, on_progress: Callable[[str], None] | None = None) -> Cluster:
        """Return a cluster that satisfies `options`: the running one if it has enough engines, else a new one."""
        self._stop_lanes()
        return self._engines.start(options, on_progress=on_progress)

    def stop_cluster(self) -> bool:
        """Stop the cluster and the engines of trials; return whether there were any."""
        stopped = self._stop_lanes()
        return self._engines.stop() or stopped

    def _stop_lanes(self) -> bool:
        stopped = self._lanes.stop()
        if stopped:  # the cluster of ordinary cells may have started meanwhile
            self.note_cluster(self._engines.update)
        return stopped

    # -- runs --------------------------------------------------------------------------------------------------------

    def submit(self, job: Callable[[BlobStore, RunOptions], CellJob], options: RunOptions, *, output: Output) -> RunResult:
        """Run a cell on the engines, or detached on new ones, and return its result: see :meth:`Runner.run`.

        `job` is called once the engines are there. It stores the notebook's values in the given store and returns the cell's job.
        """
        self._engines.check(options)
        if options.detach:
            options = replace(options, cluster=self._engines.as_before(options.cluster))

        def work(blobs: BlobStore) -> CellJob:
            return job(blobs, options)

        with self._one_run():
            if options.detach:
                find_launcher(options.cluster.launcher).plan(options.cluster)  # may raise: then the engines keep running
                self._stop_lanes()
                self._engines.stop(is_lost=True)  # the run needs their devices; the next cell will use the same hosts
                return self.remote.run(options, work, output=output)
            self._stop_lanes()
            return self._runner.run(options.cluster, work, output=output)

    def run_handed(self, options: ClusterOptions, work: Callable[[BlobStore], CellJob], *, output: Output) -> RunResult:
        """Run a job of another process, or of the record, on the engines: see :meth:`Runner.run`."""
        with self._one_run():
            self._stop_lanes()
            return self._runner.run(options, work, output=output)

    def attach(self, run: str | None, *, trusted: bool, output: Output) -> tuple[RunResult, Packed]:
        """Follow a detached run: see :meth:`DetachedRuns.attach`."""
        with self._one_run():
            return self.remote.attach(run, trusted=trusted, output=output)

    def resume(
        self,
        run_id: str | None,
        options: ClusterOptions,
        *,
        step: Wanted | None,
        trusted: bool,
        strategy: str | None,
        mesh: ParallelDims | None,
        output: Output,
    ) -> tuple[RunResult, Packed]:
        """Resume a run from a checkpoint: see :meth:`Runner.resume`."""
        with self._one_run():
            self._stop_lanes()
            return self._runner.resume(run_id, options, step=step, trusted=trusted, strategy=strategy, mesh=mesh, output=output)

    def run_trials(
        self,
        trials: Sequence[Trial],
        options: RunOptions,
        prepare: Prepare,
        *,
        output: Output,
        on_tick: Callable[[TrialScheduler], None],
        pruning: Pruning | None = None,
    ) -> TrialScheduler:
        """Run a cell's trials in parallel and return their scheduler: see :meth:`TrialScheduler.run`."""
        self._engines.check(options)
        with self._one_run():
            cluster = self._engines.as_before(options.cluster)
            wanted = lanes_for(replace(options, cluster=cluster), len(trials))
            self._engines.stop(then=cluster)  # the trials need their devices
            return self._lanes.run(trials, wanted, prepare, options=options, output=output, on_tick=on_tick, pruning=pruning)

    @contextmanager
    def _one_run(self) -> Iterator[None]:
        if self._is_running:
            raise UsageError("a %%distribute cell is running on the engines: wait for its end, or stop it in the sidebar.")
        self._is_running, self._runner.failed = True, None
        try:
            yield
        finally:
            self._is_running = False

    def stop_run(self) -> str | None:
        """Ask the run to stop and return a sentence for the user; ``None`` if there is no run. Any thread may call this."""
        how = self._runner.stop() if self._recorder is not None else None
        if how is not None:
            self.show_phase("stopping")
        return how or self._lanes.stop_trials()

    def failed_run(self) -> FailedRun | None:
        """Return the last run if its cell has failed, with its frames on the engines; raise a `UsageError` while another run goes on."""
        if self.running:
            raise UsageError("a %%distribute cell is running on the engines, which keep no frames of the one before.")
        failed = self._runner.failed
        return failed if failed is not None and failed.has_failed else self._lanes.failed_run()

    def command(self, command: Command) -> Reply:
        """Carry out a command of the sidebar, or start to."""
        return self.remote.command(command) if self.remote.is_following else self._commands.carry_out(command)

    def close(self) -> None:
        """Stop the cluster and close the database of runs."""
        self.stop_cluster()
        self._store.close()

"""One per kernel: owns the cluster and its runs. The only place where the parts meet.

The notebook's magics call it from the thread that runs the cell; the sidebar's commands and telemetry reach it from
others. What they share is guarded by one lock, held for moments; the cluster has a lock of its own, held
while it starts or stops.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from .capture.bundle import Bundle
from .checkpoint.metadata import Wanted
from .cluster.base import Cluster
from .cluster.launchers import find_launcher
from .cluster_options import ClusterOptions
from .detached.detached_runs import DetachedRuns
from .detached.mirror import RunMirror
from .elastic.agent import Agent
from .elastic.engine_pool import EnginePool
from .elastic.failed_run import FailedRun
from .elastic.job import CellJob
from .elastic.main_thread_output import Output
from .elastic.run_result import RunResult
from .elastic.runner import Runner
from .engine.task import ProcessState
from .errors import DtrainError, UsageError
from .options import RunOptions
from .parallel_dims import ParallelDims
from .protocol import PROTOCOL_VERSION, ClusterUpdate, Command, Message, Reply, RunPhase, RunUpdate, Snapshot
from .runs.detached_index import unfollowed
from .runs.record import CellOrigin
from .runs.recorder import RunRecorder
from .runs.store import RunStore
from .serialization.pickler import Packed
from .transport.base import BlobStore
from .transport.blob_store import Sending
from .trials.grid import Trial
from .trials.pool import LanePool, lanes_for
from .trials.pruning import Pruning
from .trials.scheduler import Prepare, TrialScheduler
from .trials.side_by_side import SideBySide

NOT_RUNNING = "No cell is running."

_log = logging.getLogger(__name__)


class Session:
    """The cluster of this kernel and what runs on it.

    Parameters
    ----------
    folder : Path, optional
        Where runs are recorded; by default ``dtrain-runs`` beside the notebook.
    engines : EnginePool, optional
        Those that are starting already.

    Attributes
    ----------
    on_news : callable
        Called, on any thread, when there is something new for :meth:`drain`.
    remote : DetachedRuns
        Runs of this kernel, or of others, in processes of their own.
    """

    def __init__(self, folder: Path | None = None, engines: EnginePool | None = None) -> None:
        self._store = RunStore(folder) if folder is not None else RunStore()
        self._lock = threading.Lock()
        self._recorder: RunRecorder | RunMirror | SideBySide | None = None
        self._cluster_update = ClusterUpdate(phase="stopped")
        self._news: list[Message] = []
        self._is_running = False
        self.on_news: Callable[[], None] = lambda: None
        self._engines = engines or EnginePool()
        self._engines.on_update = self.note_cluster
        if engines is not None:
            self.note_cluster(engines.update)
        self._runner = Runner(self._engines, self._store, on_begin=self.start, on_news=lambda: self.on_news())
        self._lanes = LanePool(self._store, on_begin=self.start, on_cluster=self.note_cluster, on_news=lambda: self.on_news())
        self.remote = DetachedRuns(self._store, self)

    @property
    def runs_folder(self) -> Path:
        """Where runs are recorded."""
        return self._store.folder

    # -- cluster -----------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster | None:
        """The running cluster, if there is one."""
        return self._engines.cluster

    @property
    def running(self) -> bool:
        """Whether a cell is running on the engines, or about to."""
        return self._is_running

    def start_cluster(self, options: ClusterOptions, *, on_progress: Callable[[str], None] | None = None) -> Cluster:
        """Return a cluster that has what `options` asks for: the running one if it has enough engines, else a new one."""
        self._stop_lanes()
        return self._engines.start(options, on_progress=on_progress)

    def stop_cluster(self) -> bool:
        """Stop the cluster, and the engines of trials; return whether there were any."""
        stopped = self._stop_lanes()
        return self._engines.stop() or stopped

    def note_cluster(self, update: ClusterUpdate) -> None:
        """Tell views of the engines that this kernel's cells run on. Any thread may call this."""
        with self._lock:
            self._news.append(update)
            self._cluster_update = update
        self.on_news()

    def _stop_lanes(self) -> bool:
        stopped = self._lanes.stop()
        if stopped:  # those of other cells may have started meanwhile
            self.note_cluster(self._engines.update)
        return stopped

    # -- runs --------------------------------------------------------------------------------------------------------

    def submit(
        self, source: str, bundle: Bundle, options: RunOptions, *, cell: str, origin: CellOrigin, filename: str, output: Output
    ) -> RunResult:
        """Run a cell on the engines, or detached on others, and return how it ended: see :meth:`Runner.run`."""
        self._engines.check(options)
        if options.detach:
            options = replace(options, cluster=self._engines.as_before(options.cluster))
        moment = ProcessState.now(None if options.detach else source)

        def work(blobs: BlobStore) -> CellJob:
            return CellJob.of(
                source,
                bundle,
                blobs,
                options=options,
                cell=cell,
                origin=origin,
                filename=filename,
                moment=moment,
                on_progress=Sending(output.progress),
            )

        with self._one_run():
            if options.detach:
                find_launcher(options.cluster.launcher).plan(options.cluster)  # what cannot be had must not cost the engines that there are
                self._stop_lanes()
                self._engines.stop(is_lost=True)  # what they compute on is the run's now; the next cell is on the same hosts
                return self.remote.run(options, work, output=output)
            self._stop_lanes()
            return self._runner.run(options.cluster, work, output=output)

    def run_handed(self, options: ClusterOptions, work: Callable[[BlobStore], CellJob], *, output: Output) -> RunResult:
        """Run a cell of another process, or of the record, on the engines: see :meth:`Runner.run`."""
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
        """Let a run go on from a checkpoint: see :meth:`Runner.resume`."""
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
        """Run a cell's trials side by side, and return what has become of them: see :meth:`TrialScheduler.run`."""
        self._engines.check(options)
        with self._one_run():
            wanted = lanes_for(options, len(trials))
            self._engines.stop()  # what they compute on is the trials' now
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
        """Ask the run to stop, and return how it does; ``None``: there is none. Any thread may call this."""
        how = self._runner.stop() if self._recorder is not None else None
        if how is not None:
            self._show_phase("stopping")
        return how or self._lanes.stop_trials()

    def failed_run(self) -> FailedRun | None:
        """Return the last run, whose frames the engines keep, if its cell has failed; a `UsageError` while another runs."""
        if self.running:
            raise UsageError("a %%distribute cell is running on the engines, which keep no frames of the one before.")
        failed = self._runner.failed
        return failed if failed is not None and failed.has_failed else self._lanes.failed_run()

    def _supervisor(self) -> Agent:
        supervisor = self._runner.supervisor
        self._lanes.check_none()
        if supervisor is None:
            raise UsageError(NOT_RUNNING)
        return supervisor

    def _show_phase(self, phase: RunPhase) -> None:
        recorder = self._recorder
        if isinstance(recorder, RunRecorder):
            recorder.set_phase(phase)
        self.on_news()

    def start(self, recorder: RunRecorder | RunMirror | SideBySide) -> None:
        """Show this run to views from now on."""
        with self._lock:
            self._news.extend(() if self._recorder is None else self._recorder.drain())
            self._recorder = recorder

    # -- views -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state so far: all that earlier calls of :meth:`drain` returned, in short."""
        with self._lock:
            recorder, cluster = self._recorder, self._cluster_update
        run: RunUpdate | None = recorder.run_update() if recorder is not None else None
        return Snapshot(
            version=PROTOCOL_VERSION,
            cluster=cluster,
            run=run,
            points=recorder.snapshot_points() if recorder is not None else [],
            devices=recorder.devices() if recorder is not None else [],
            times=recorder.times() if recorder is not None else [],
            notices=recorder.notices() if recorder is not None else [],
            trials=recorder.trials() if isinstance(recorder, SideBySide) else None,
            detached=unfollowed(self._store.folder),
        )

    def drain(self) -> list[Message]:
        """Return what is new since the last call."""
        with self._lock:
            news, self._news = self._news, []
            recorder = self._recorder
        return news + (recorder.drain() if recorder is not None else [])

    def command(self, command: Command) -> Reply:
        """Carry out a command of the sidebar, or set about it."""
        if self.remote.is_following:
            return self.remote.command(command)
        match command.name:
            case "stop_run":
                stopping = self.stop_run()
                return Reply(id=command.id, ok=stopping is not None, message=stopping or NOT_RUNNING)
            case "stop_trial":
                return Reply(id=command.id, ok=True, message=self._lanes.stop_trial(command.run_id))
            case "pause_run":
                self._supervisor().pause()
                return Reply(id=command.id, ok=True, message="Pausing after this step.")
            case "resume_run":
                self._supervisor().resume()
                self._show_phase("running")
                return Reply(id=command.id, ok=True, message="Training continues.")
            case "checkpoint_now":
                self._supervisor().write_checkpoint()
                return Reply(id=command.id, ok=True, message="A checkpoint is written at the next point from which the cell can resume.")
            case "roll_back":
                return self._roll_back(command)
            case "start_cluster":
                self._lanes.check_none()
                if self._engines.update.phase in ("starting", "stopping"):
                    return Reply(id=command.id, ok=False, message=f"The cluster is {self._engines.update.phase}.")
                options = ClusterOptions(num_engines=command.num_engines)
                _in_background(lambda: self.start_cluster(options))
                return Reply(id=command.id, ok=True, message="The engines are starting.")
            case "stop_cluster":
                if self.running:
                    return Reply(id=command.id, ok=False, message="A cell is running on the engines: stop it first.")
                _in_background(self.stop_cluster)
                return Reply(id=command.id, ok=True, message="The engines are stopping.")
            case "restart_engine":
                return self._restart_engine(command)
            case _:
                raise UsageError(f"{command.name} is not an engine command.")

    def _restart_engine(self, command: Command) -> Reply:
        rank, cluster, supervisor = command.rank, self._engines.cluster, self._runner.supervisor
        self._lanes.check_none()
        if rank is None:
            raise UsageError("Which engine? The command names no rank.")
        if supervisor is not None:
            supervisor.restart(rank)
        elif self.running:
            raise UsageError("The run is starting: try again in a moment.")
        elif cluster is None:
            raise UsageError("No engines are running.")
        elif not 0 <= rank < len(cluster.engines):
            raise UsageError(f"There is no rank {rank}.")
        else:
            _in_background(lambda: self._engines.restart(cluster, [rank]))
        return Reply(id=command.id, ok=True, message=f"The engine of rank {rank} is restarting.")

    def _roll_back(self, command: Command) -> Reply:
        supervisor, recorder, step = self._runner.supervisor, self._recorder, command.step
        if step is None:
            raise UsageError("Which checkpoint? The command names no step.")
        run = recorder.run_update() if recorder is not None else None
        if supervisor is None or run is None or run.run_id != command.run_id:
            raise UsageError(f"That run is not running. `%distribute resume {command.run_id}@{step}` in a cell continues it from there.")
        supervisor.roll_back(step)
        return Reply(id=command.id, ok=True, message=f"Going back to step {step}.")

    def close(self) -> None:
        """Stop the cluster and let go of the record."""
        self.stop_cluster()
        self._store.close()


def _in_background(action: Callable[[], object]) -> None:
    """Run `action` on a thread; a `DtrainError` is part of the cluster's state, which views are told of."""

    def submit() -> None:
        try:
            action()
        except DtrainError:
            return
        except Exception:
            _log.exception("A command to the engines failed")

    threading.Thread(target=submit, name="dtrain-cluster", daemon=True).start()

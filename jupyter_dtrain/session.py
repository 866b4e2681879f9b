"""One per kernel: owns the cluster and its runs. The only place where the parts meet.

The notebook's magics call it from the thread that runs the cell; the sidebar's commands and telemetry reach it from
others. What they share is guarded by one lock, held for moments; the cluster has a lock of its own, held
while it starts or stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from .capture.bundle import Bundle, RandomState
from .capture.pickling import Packed
from .capture.surroundings import Surroundings
from .cluster.cluster import EngineCluster
from .cluster.devices import plan_devices
from .engine.worker import Outcome, Task
from .errors import ClusterError, UsageError
from .execution import Execution, Group, Output, RankEnd, lost_engines
from .options import ClusterOptions, RunOptions
from .protocol import PROTOCOL_VERSION, ClusterUpdate, Command, Message, Reply, RunPhase, RunUpdate, Snapshot
from .runs.recorder import RunRecorder
from .runs.recording import Recording
from .runs.store import RunStore
from .transport.blobs import BlobFolder
from .transport.wire import from_parcel, to_parcel

GROUP_TIMEOUT = timedelta(minutes=30)  # torch's own for collectives


@dataclass(frozen=True)
class RunResult:
    """What a run left.

    Attributes
    ----------
    ends : list of RankEnd
        How each rank ended, in rank order.
    returned : Packed, optional
        What rank 0 sent back.
    lost : ClusterError, optional
        To be raised where an engine was lost.
    interrupted : bool
        Whether there was a keyboard interrupt.
    """

    ends: list[RankEnd]
    returned: Packed | None
    lost: ClusterError | None
    interrupted: bool

    @property
    def first(self) -> Outcome | None:
        """The outcome of rank 0, which holds the results."""
        return self.ends[0].outcome


class Session:
    """The cluster of this kernel and what runs on it.

    Parameters
    ----------
    folder : Path, optional
        Where runs are recorded; by default ``dtrain-runs`` beside the notebook.
    on_news : callable
        Called, on any thread, when there is something new for :meth:`drain`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._store = RunStore(folder) if folder is not None else RunStore()
        self._lock = threading.Lock()
        self._cluster_lock = threading.RLock()
        self._cluster: EngineCluster | None = None
        self._cluster_update = ClusterUpdate(phase="stopped")
        self._group: Group | None = None
        self._recorder: RunRecorder | None = None
        self._execution: Execution | None = None
        self._news: list[Message] = []
        self.on_news: Callable[[], None] = lambda: None

    @property
    def runs_folder(self) -> Path:
        """Where runs are recorded."""
        return self._store.folder

    # -- cluster -----------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> EngineCluster | None:
        """The running cluster, if there is one."""
        cluster = self._cluster
        return cluster if cluster is not None and cluster.alive else None

    @property
    def running(self) -> bool:
        """Whether a cell is running on the engines."""
        return self._execution is not None

    def start_cluster(self, options: ClusterOptions, *, on_progress: Callable[[str], None] | None = None) -> EngineCluster:
        """Return a cluster that has what `options` asks for: the running one if it has enough engines, else a new one."""
        with self._cluster_lock:
            cluster = self.cluster
            if cluster is not None and _satisfies(cluster, options):
                return cluster
            if self._cluster is not None:
                plan_devices(options)  # what cannot be had must not cost the cluster that there is
                self.stop_cluster()

            def tell(sentence: str) -> None:
                self._set_cluster(ClusterUpdate(phase="starting", detail=sentence))
                if on_progress is not None:
                    on_progress(sentence)

            try:
                tell("starting")
                cluster = EngineCluster.start(options, on_progress=tell)
            except BaseException as error:
                self._set_cluster(ClusterUpdate(phase="stopped", detail=str(error).partition("\n")[0]))
                raise
            self._cluster = cluster
            self._set_cluster(ClusterUpdate(phase="running", engines=cluster.engines))
            return cluster

    def stop_cluster(self) -> bool:
        """Stop the cluster; return whether there was one."""
        with self._cluster_lock:
            cluster, self._cluster, self._group = self._cluster, None, None
            if cluster is None:
                return False
            self._set_cluster(ClusterUpdate(phase="stopping", engines=cluster.engines))
            cluster.stop()
            self._set_cluster(ClusterUpdate(phase="stopped"))
            return True

    def _set_cluster(self, update: ClusterUpdate) -> None:
        with self._lock:
            self._cluster_update = update
            self._news.append(update)
        self.on_news()

    def _group_of(self, cluster: EngineCluster, num_ranks: int) -> Group:
        group = self._group
        if group is None or group.cluster is not cluster or len(group.engine_ids) != num_ranks:
            group = self._group = Group(cluster, num_ranks)
        return group

    # -- runs --------------------------------------------------------------------------------------------------------

    def run(self, source: str, bundle: Bundle, options: RunOptions, *, cell: str, filename: str, output: Output) -> RunResult:
        """Run a cell on the engines and return how it ended.

        Parameters
        ----------
        source : str
            Plain Python, its line numbers those of the cell.
        bundle : Bundle
            The notebook's values that it needs.
        cell : str
            The cell as it was typed, for the record.
        filename : str
            What tracebacks call the cell.
        """
        if self.running:
            raise UsageError("a %%distribute cell is running on the engines: wait for its end, or stop it in the sidebar.")
        random_state = RandomState.now()
        cluster = self.start_cluster(options.cluster, on_progress=output.progress)
        num_ranks = options.cluster.num_engines or len(cluster.engine_ids)
        group = self._group_of(cluster, num_ranks)
        blobs = BlobFolder(cluster.blob_dir)
        parcel = to_parcel(bundle.packed, blobs)
        blobs.trim(keep=parcel.keys, limit=sum(buffer.nbytes for buffer in bundle.packed.buffers) + blobs.limit)
        if not cluster.warm:  # an interrupt of that import would be lost, and a cell that waits behind it could not be stopped
            output.progress("the engines import torch")
            cluster.wait_warm(options.cluster.start_timeout)
            output.progress(f"{len(cluster.engine_ids)} engines ready")
        recording = Recording(
            self._store, name=options.name, cell=cell, world_size=num_ranks, arguments=_arguments(options), say=output.say
        )
        recorder = recording.recorder
        is_program = options.strategy == "none"
        interrupted = False

        def on_event(event: Message) -> None:
            recorder.apply(event)
            self.on_news()

        def on_interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            recorder.set_phase("stopping")
            output.say("Interrupted: stopping at the end of this step. Interrupt again to break it off.")

        ends: list[RankEnd] = []
        phase: RunPhase = "failed"
        error: str | None = "broken off"
        try:
            task = Task(
                run_id=recording.run_id,
                rank=0,
                world_size=num_ranks,
                rendezvous=None if is_program else group.rendezvous(),
                program_port=group.program_port() if is_program else None,
                source=source,
                filename=filename,
                parcel=parcel,
                random_state=random_state,
                surroundings=Surroundings.now(),
                blob_folder=cluster.blob_dir,
                device=cluster.device_plans[0].device,
                numbers=options.numbers,
                split=options.split,
                per_rank_batches=options.batch == "per-rank",
                split_evaluation=options.split_eval,
                output=options.output,
                timeout=GROUP_TIMEOUT,
            )
            execution = Execution(group, task, on_event=on_event, output=output)
            with self._lock:
                self._news.extend(() if self._recorder is None else self._recorder.drain())
                self._recorder, self._execution = recorder, execution
            ends = execution.run(on_tick=recording.tick, on_interrupt=on_interrupt)
            phase, error = _phase_of(ends)
        finally:
            self._execution = None
            recording.finish(phase, error)
            self.on_news()
        first = ends[0].outcome
        # Mapped here: what is mapped outlives the folder, which goes with a cluster that has lost an engine.
        returned = from_parcel(first.parcel, blobs) if first is not None and first.parcel is not None else None
        lost = lost_engines(ends, cluster)
        if lost is not None:
            self.stop_cluster()
        return RunResult(ends, returned, lost, interrupted)

    def stop_run(self) -> bool:
        """Ask the run to stop at the end of a step; return whether there is one. Any thread may call this."""
        with self._lock:
            execution, recorder = self._execution, self._recorder
        if execution is None or recorder is None:
            return False
        execution.stop()
        recorder.set_phase("stopping")
        self.on_news()
        return True

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
        )

    def drain(self) -> list[Message]:
        """Return what is new since the last call."""
        with self._lock:
            news, self._news = self._news, []
            recorder = self._recorder
        return news + (recorder.drain() if recorder is not None else [])

    def command(self, command: Command) -> Reply:
        """Carry out a command of the sidebar, or set about it."""
        match command.name:
            case "stop_run":
                stopping = self.stop_run()
                return Reply(id=command.id, ok=stopping, message="Stopping at the end of this step." if stopping else "No cell is running.")
            case "start_cluster":
                if self._cluster_update.phase in ("starting", "stopping"):
                    return Reply(id=command.id, ok=False, message=f"The cluster is {self._cluster_update.phase}.")
                options = ClusterOptions(num_engines=command.num_engines)
                _in_background(lambda: self.start_cluster(options))
                return Reply(id=command.id, ok=True, message="The engines are starting.")
            case "stop_cluster":
                if self.running:
                    return Reply(id=command.id, ok=False, message="A cell is running on the engines: stop it first.")
                _in_background(self.stop_cluster)
                return Reply(id=command.id, ok=True, message="The engines are stopping.")
            case _:
                raise UsageError(f"{command.name} is no command to the engines.")

    def close(self) -> None:
        """Stop the cluster and let go of the record."""
        self.stop_cluster()
        self._store.close()


def _satisfies(cluster: EngineCluster, options: ClusterOptions) -> bool:
    enough = options.num_engines is None or options.num_engines <= len(cluster.engine_ids)
    kind = cluster.device_plans[0].device.partition(":")[0]
    return enough and options.device in ("auto", kind)


def _phase_of(ends: list[RankEnd]) -> tuple[RunPhase, str | None]:
    outcomes = [end.outcome for end in ends if end.outcome is not None]
    if len(outcomes) < len(ends):
        return "failed", "an engine was lost"
    failures = [o.failure for o in outcomes if o.failure is not None]
    if failures:
        primary = next((f for f in failures if not f.secondary), failures[0])
        if primary.name == "KeyboardInterrupt":
            return "stopped", None
        return "failed", f"{primary.name}: {primary.message}".partition("\n")[0]
    return ("stopped" if any(o.stopped for o in outcomes) else "finished"), None


def _arguments(options: RunOptions) -> dict[str, Any]:
    return {
        "engines": options.cluster.num_engines,
        "device": options.cluster.device,
        "strategy": options.strategy,
        "numbers": options.numbers,
        "batch": options.batch,
    }


def _in_background(action: Callable[[], object]) -> None:
    """Run `action` on a thread; its errors are part of the cluster's state, which views are told of."""

    def run() -> None:
        try:
            action()
        except Exception:
            return

    threading.Thread(target=run, name="dtrain-cluster", daemon=True).start()

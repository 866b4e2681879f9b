"""The kernel's cluster: started on first use, shared by all cells, renewed when its controller dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from ..cluster.base import Cluster, Progress
from ..cluster.devices import DevicePlan, plan_devices, shares_devices
from ..cluster.launchers import LOCAL, find_launcher
from ..cluster_options import ClusterOptions
from ..errors import ClusterError, UsageError
from ..options import RunOptions
from ..protocol import ClusterUpdate
from ..system.interpreter import interrupted_before_the_cell
from .engine_start import STARTING, EngineStart, satisfies

if TYPE_CHECKING:
    from .worker_group import WorkerGroup

RESTART_LIMIT = timedelta(seconds=60)


class EnginePool:
    """Own at most one cluster. Any thread may use the pool; a lock is held while a cluster starts or stops.

    This module imports no torch, so engines start while the kernel still imports it.

    Attributes
    ----------
    on_update : callable
        Called with a `ClusterUpdate` after every change, on any thread.
    update : ClusterUpdate
        The current state of the cluster.
    lost_hosts : frozenset of str
        Hosts that the last cluster had lost when it stopped.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._cluster: Cluster | None = None
        self._group: WorkerGroup | None = None
        self._beginning: EngineStart | None = None
        self._options = ClusterOptions()  # of the current cluster, kept until the user stops it
        self.lost_hosts: frozenset[str] = frozenset()  # of the last cluster, when it stopped
        self.on_update: Callable[[ClusterUpdate], None] = lambda _update: None
        self.update = ClusterUpdate(phase="stopped")

    @property
    def cluster(self) -> Cluster | None:
        """The running cluster, if there is one."""
        cluster = self._cluster
        return cluster if cluster is not None and cluster.alive and cluster.has_folders else None

    def prepare(self, options: RunOptions) -> None:
        """Start a cluster for a run in the background if there is none; the next :meth:`start` waits for it."""
        if self._cluster is None and (self._beginning is None or self._beginning.over):
            with suppress(UsageError):  # submitting the run raises the error; nothing is started for it
                self.check(options)
                self._beginning = EngineStart(lambda progress: self._started(options.cluster, progress))

    def start(self, options: ClusterOptions, *, on_progress: Progress | None = None) -> Cluster:
        """Return a cluster that satisfies `options`: the running one if it has enough engines, else a new one."""
        beginning, self._beginning = self._beginning, None
        with interrupted_before_the_cell(STARTING):
            if beginning is not None and not beginning.over:
                beginning.wait(on_progress)
            return self._started(options, on_progress)

    def _started(self, options: ClusterOptions, on_progress: Progress | None) -> Cluster:
        with self._lock:
            if self._cluster is not None:
                self._cluster.end_stopped_guard()
            cluster = self.cluster
            if cluster is not None and satisfies(cluster, options, self._options):
                return cluster
            options = self.as_before(options)
            if self._cluster is not None:
                find_launcher(options.launcher).plan(options)  # raises before the running cluster is stopped if `options` cannot be had
                self._stop()
            return self._start(options, on_progress)

    def check(self, options: RunOptions) -> None:
        """Raise a `UsageError` if the cluster of a run with these options could not run it."""
        find_launcher(self.as_before(options.cluster).launcher).check(options)

    def as_before(self, options: ClusterOptions) -> ClusterOptions:
        """Return `options` with the hosts of the current or lost cluster if they name none: no run falls back to this host silently."""
        before = self._options
        if options.launcher is not None or before.launcher in (None, LOCAL):
            return options
        return replace(options, **before.where)

    def devices_for(self, options: ClusterOptions) -> Sequence[DevicePlan]:
        """Return the devices that a cell's engines would have; empty if hosts other than this one decide that."""
        cluster, asked = self.cluster, self.as_before(options)
        if cluster is not None and satisfies(cluster, options, self._options):
            plans = cluster.device_plans
            return plans[: options.num_engines or len(plans)]
        return plan_devices(asked) if asked.launcher in (None, LOCAL) else ()

    def num_engines_for(self, options: ClusterOptions, wanted: int) -> int | None:
        """Return how many engines to ask for if `options` do not say: `wanted`, or ``None`` if remote hosts decide that."""
        cluster, asked = self.cluster, self.as_before(options)
        if not find_launcher(asked.launcher).hosts_say_how_many:
            return wanted
        fits = cluster is not None and satisfies(cluster, replace(options, num_engines=wanted), self._options)
        return wanted if fits else None

    def stop(self, *, is_lost: bool = False, then: ClusterOptions | None = None) -> bool:
        """Stop the cluster, also one that is starting in the background; return whether there was one.

        The next cluster uses the same hosts if this one is lost, else those of `then`, unless its own options name others.
        """
        if not is_lost:
            self._options = ClusterOptions() if then is None else ClusterOptions(**then.where)
        beginning, self._beginning = self._beginning, None
        is_starting = beginning is not None and not beginning.over
        if beginning is not None:
            beginning.give_up()
        return self._stop() or is_starting

    def _stop(self) -> bool:
        with self._lock:
            cluster, self._cluster, self._group = self._cluster, None, None
            if cluster is None:
                return False
            self._tell(ClusterUpdate(phase="stopping", engines=cluster.engines))
            self.lost_hosts = frozenset(cluster.lost_hosts)
            cluster.stop()
            self._tell(ClusterUpdate(phase="stopped"))
            return True

    def restart(self, cluster: Cluster, ranks: Sequence[int]) -> None:
        """Replace the engines of `ranks`, which must be idle; raise a `ClusterError` if the new ones do not start."""
        which = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"

        def tell(sentence: str) -> None:
            self._tell(ClusterUpdate(phase="starting", engines=list(cluster.engines), detail=f"{which}: {sentence}"))

        with self._lock:
            if self._cluster is not cluster:
                return  # the cluster was stopped meanwhile
            self._group = None  # its rendezvous does not include the new engine
            tell("starting anew")
            try:
                cluster.restart(ranks, limit=RESTART_LIMIT, on_progress=tell)
            except BaseException as error:
                self._stop()
                self._tell(ClusterUpdate(phase="stopped", detail=str(error).partition("\n")[0]))
                raise
            self.show()

    def begin_restart(self, cluster: Cluster, ranks: Sequence[int]) -> None:
        """Restart the engines of `ranks` in the background; other users of the cluster wait for it. An error is shown in `update` only."""
        begun = threading.Event()

        def run() -> None:
            with self._lock, suppress(Exception):
                begun.set()
                self.restart(cluster, ranks)

        threading.Thread(target=run, name="dtrain-restart", daemon=True).start()
        begun.wait()

    def renew(self, old: Cluster, *, on_progress: Progress) -> Cluster:
        """Renew `old`, whose controller is gone, or start an equal cluster that takes over the run's files.

        Raises
        ------
        ClusterError
            No cluster could be started, or `old` spans hosts, whose files cannot be taken over.
        """
        from ..transport.blob_store import BlobFolder

        kind = old.device_plans[0].device.partition(":")[0]
        options = replace(
            self._options,
            num_engines=len(old.device_plans),
            device="cuda" if kind == "cuda" else "cpu",
            devices="shared" if shares_devices(old.device_plans) else "exclusive",
            force=True,
        )
        with self._lock:
            self._group = None
            with suppress(ClusterError):  # another process of the cluster has died meanwhile
                if self._cluster is old and old.renew(limit=RESTART_LIMIT, on_progress=on_progress):
                    old.wait_warm(options.start_timeout)
                    self.show()
                    return old
            if not old.can_be_inherited:
                raise ClusterError("What a run on several hosts has there cannot be taken over by another cluster yet.")
            try:
                cluster = self._start(options, on_progress)
            except BaseException:
                self._cluster = old  # the caller still reads the results from its folder, and stops it then
                raise
            try:
                cluster.inherit(old)
                BlobFolder(cluster.blob_dir).inherit(old.blob_dir)
            finally:
                old.stop()
        cluster.wait_warm(options.start_timeout)
        return cluster

    def group(self, cluster: Cluster, num_ranks: int) -> WorkerGroup:
        """Return the first `num_ranks` engines as a group: the last cell's group if possible, as its ranks have met already."""
        from .worker_group import WorkerGroup

        group = self._group
        stopped = [] if group is not None and group.have_met else [rank for rank in range(num_ranks) if cluster.is_stopped(rank)]
        if stopped:
            self.restart(cluster, stopped)  # at the rendezvous the others would wait for them
        if group is None or group.cluster is not cluster or group.num_ranks != num_ranks:
            group = self._group = WorkerGroup(cluster, num_ranks)
        return group

    def show(self) -> None:
        """Publish the current engines, after some were replaced."""
        cluster = self._cluster
        if cluster is not None:
            self._tell(ClusterUpdate(phase="running", engines=list(cluster.engines), lost_hosts=cluster.lost_hosts))

    def _start(self, options: ClusterOptions, on_progress: Progress | None) -> Cluster:
        def tell(sentence: str) -> None:
            self._tell(ClusterUpdate(phase="starting", detail=sentence))
            if on_progress is not None:
                on_progress(sentence)

        try:
            tell("starting")
            cluster = find_launcher(options.launcher).start(options, on_progress=tell)
        except BaseException as error:
            self._cluster = self._group = None
            self._tell(ClusterUpdate(phase="stopped", detail=str(error).partition("\n")[0]))
            raise
        self._cluster, self._options = cluster, options
        self.show()
        return cluster

    def _tell(self, update: ClusterUpdate) -> None:
        self.update = update
        self.on_update(update)

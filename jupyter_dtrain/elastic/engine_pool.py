"""The kernel's cluster: started when it is first needed, shared by all cells, and renewed when its controller dies."""

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
    """Owns at most one cluster. Any thread may use it; one lock is held while a cluster starts or stops.

    Importing this module imports no torch: engines start while the notebook's process does.

    Attributes
    ----------
    on_update : callable
        Told of every change, on any thread.
    update : ClusterUpdate
        The cluster as it is now.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._cluster: Cluster | None = None
        self._group: WorkerGroup | None = None
        self._beginning: EngineStart | None = None
        self._options = ClusterOptions()  # of the cluster, until somebody ends it
        self.lost_hosts: frozenset[str] = frozenset()  # those that the last cluster had lost at its end
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
            with suppress(UsageError):  # the run is refused when it is submitted, and is to have started nothing
                self.check(options)
                self._beginning = EngineStart(lambda progress: self._started(options.cluster, progress))

    def start(self, options: ClusterOptions, *, on_progress: Progress | None = None) -> Cluster:
        """Return a cluster that has what `options` asks for: the running one if it has enough engines, else a new one."""
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
                find_launcher(options.launcher).plan(options)  # what cannot be had must not cost the cluster that there is
                self._stop()
            return self._start(options, on_progress)

    def check(self, options: RunOptions) -> None:
        """Refuse, with a `UsageError`, what the cluster that a run would be on cannot do."""
        find_launcher(self.as_before(options.cluster).launcher).check(options)

    def as_before(self, options: ClusterOptions) -> ClusterOptions:
        """Return `options` with the hosts of the cluster that there is or was lost, where they name none: not this one without a word."""
        before = self._options
        if options.launcher is not None or before.launcher in (None, LOCAL):
            return options
        return replace(options, **before.where)

    def devices_for(self, options: ClusterOptions) -> Sequence[DevicePlan]:
        """Return what the engines of a cell compute on; none where others than this host say it."""
        cluster, asked = self.cluster, self.as_before(options)
        if cluster is not None and satisfies(cluster, options, self._options):
            plans = cluster.device_plans
            return plans[: options.num_engines or len(plans)]
        return plan_devices(asked) if asked.launcher in (None, LOCAL) else ()

    def num_engines_for(self, options: ClusterOptions, wanted: int) -> int | None:
        """Return how many engines to ask for where `options` do not say: `wanted`; ``None`` where these are on hosts that say it."""
        cluster, asked = self.cluster, self.as_before(options)
        if not find_launcher(asked.launcher).hosts_say_how_many:
            return wanted
        fits = cluster is not None and satisfies(cluster, replace(options, num_engines=wanted), self._options)
        return wanted if fits else None

    def stop(self, *, is_lost: bool = False, then: ClusterOptions | None = None) -> bool:
        """Stop the cluster, and one that is starting in the background; return whether there was one.

        The next is on the same hosts where this one is lost, or on those of `then`, where nobody asks for others.
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
        """Put other engines in the place of those of `ranks`, which are at work on nothing; a `ClusterError` where they do not come up."""
        which = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"

        def tell(sentence: str) -> None:
            self._tell(ClusterUpdate(phase="starting", engines=list(cluster.engines), detail=f"{which}: {sentence}"))

        with self._lock:
            if self._cluster is not cluster:
                return  # it has been stopped meanwhile
            self._group = None  # its ranks have met without the new engine
            tell("starting anew")
            try:
                cluster.restart(ranks, limit=RESTART_LIMIT, on_progress=tell)
            except BaseException as error:
                self._stop()
                self._tell(ClusterUpdate(phase="stopped", detail=str(error).partition("\n")[0]))
                raise
            self.show()

    def begin_restart(self, cluster: Cluster, ranks: Sequence[int]) -> None:
        """Restart the engines of `ranks` in the background; whoever needs the cluster waits for it. What fails is in `update`."""
        begun = threading.Event()

        def run() -> None:
            with self._lock, suppress(Exception):
                begun.set()
                self.restart(cluster, ranks)

        threading.Thread(target=run, name="dtrain-restart", daemon=True).start()
        begun.wait()

    def renew(self, old: Cluster, *, on_progress: Progress) -> Cluster:
        """Renew `old`, whose controller is gone, or start a cluster like it, which takes over the files that a run has there."""
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
            with suppress(ClusterError):  # one more has died meanwhile
                if self._cluster is old and old.renew(limit=RESTART_LIMIT, on_progress=on_progress):
                    old.wait_warm(options.start_timeout)
                    self.show()
                    return old
            if not old.can_be_inherited:
                raise ClusterError("What a run on several hosts has there cannot be taken over by another cluster yet.")
            try:
                cluster = self._start(options, on_progress)
            except BaseException:
                self._cluster = old  # whoever waits for another takes home what there is in its folder, and stops it then
                raise
            try:
                cluster.inherit(old)
                BlobFolder(cluster.blob_dir).inherit(old.blob_dir)
            finally:
                old.stop()
        cluster.wait_warm(options.start_timeout)
        return cluster

    def group(self, cluster: Cluster, num_ranks: int) -> WorkerGroup:
        """Return the first `num_ranks` engines as a group, the same as for the last cell where that is possible."""
        from .worker_group import WorkerGroup

        group = self._group
        stopped = [] if group is not None and group.have_met else [rank for rank in range(num_ranks) if cluster.is_stopped(rank)]
        if stopped:
            self.restart(cluster, stopped)  # the others would wait for them where they meet
        if group is None or group.cluster is not cluster or group.num_ranks != num_ranks:
            group = self._group = WorkerGroup(cluster, num_ranks)
        return group

    def show(self) -> None:
        """Tell of engines that have taken the place of others."""
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

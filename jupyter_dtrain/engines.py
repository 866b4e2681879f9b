"""The kernel's cluster: started when it is first needed, shared by all cells, and renewed when its controller dies."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable

from .cluster.cluster import EngineCluster
from .cluster.devices import plan_devices
from .group import Group
from .options import ClusterOptions
from .protocol import ClusterUpdate

Progress = Callable[[str], None]


class Engines:
    """Owns at most one cluster. Any thread may use it; one lock is held while a cluster starts or stops.

    Parameters
    ----------
    on_update : callable
        Told of every change, on any thread.

    Attributes
    ----------
    update : ClusterUpdate
        The cluster as it is now.
    """

    def __init__(self, on_update: Callable[[ClusterUpdate], None]) -> None:
        self._lock = threading.RLock()
        self._cluster: EngineCluster | None = None
        self._group: Group | None = None
        self._on_update = on_update
        self.update = ClusterUpdate(phase="stopped")

    @property
    def cluster(self) -> EngineCluster | None:
        """The running cluster, if there is one."""
        cluster = self._cluster
        return cluster if cluster is not None and cluster.alive else None

    def start(self, options: ClusterOptions, *, on_progress: Progress | None = None) -> EngineCluster:
        """Return a cluster that has what `options` asks for: the running one if it has enough engines, else a new one."""
        with self._lock:
            cluster = self.cluster
            if cluster is not None and _satisfies(cluster, options):
                return cluster
            if self._cluster is not None:
                plan_devices(options)  # what cannot be had must not cost the cluster that there is
                self.stop()
            return self._start(options, on_progress)

    def stop(self) -> bool:
        """Stop the cluster; return whether there was one."""
        with self._lock:
            cluster, self._cluster, self._group = self._cluster, None, None
            if cluster is None:
                return False
            self._tell(ClusterUpdate(phase="stopping", engines=cluster.engines))
            cluster.stop()
            self._tell(ClusterUpdate(phase="stopped"))
            return True

    def renew(self, old: EngineCluster, *, on_progress: Progress) -> EngineCluster:
        """Start a cluster like `old`, whose controller is gone, and take over the files that a run has there."""
        kind = old.device_plans[0].device.partition(":")[0]
        options = ClusterOptions(num_engines=len(old.device_plans), device="cuda" if kind == "cuda" else "cpu")
        with self._lock:
            try:
                cluster = self._start(options, on_progress)
                for kept in old.blob_dir.iterdir():
                    shutil.move(kept, cluster.blob_dir)
            finally:
                old.stop()
        cluster.wait_warm(options.start_timeout)
        return cluster

    def group(self, cluster: EngineCluster, num_ranks: int) -> Group:
        """Return the first `num_ranks` engines as a group, the same as for the last cell where that is possible."""
        group = self._group
        if group is None or group.cluster is not cluster or group.num_ranks != num_ranks:
            group = self._group = Group(cluster, num_ranks)
        return group

    def show(self) -> None:
        """Tell of engines that have taken the place of others."""
        cluster = self._cluster
        if cluster is not None:
            self._tell(ClusterUpdate(phase="running", engines=list(cluster.engines)))

    def _start(self, options: ClusterOptions, on_progress: Progress | None) -> EngineCluster:
        def tell(sentence: str) -> None:
            self._tell(ClusterUpdate(phase="starting", detail=sentence))
            if on_progress is not None:
                on_progress(sentence)

        try:
            tell("starting")
            cluster = EngineCluster.start(options, on_progress=tell)
        except BaseException as error:
            self._cluster = self._group = None
            self._tell(ClusterUpdate(phase="stopped", detail=str(error).partition("\n")[0]))
            raise
        self._cluster = cluster
        self.show()
        return cluster

    def _tell(self, update: ClusterUpdate) -> None:
        self.update = update
        self._on_update(update)


def _satisfies(cluster: EngineCluster, options: ClusterOptions) -> bool:
    enough = options.num_engines is None or options.num_engines <= len(cluster.engine_ids)
    kind = cluster.device_plans[0].device.partition(":")[0]
    return enough and options.device in ("auto", kind)

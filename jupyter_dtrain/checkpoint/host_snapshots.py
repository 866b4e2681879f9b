"""Snapshots of ranks on several hosts: in the memory of each rank's host, and what a rank has for itself elsewhere as well.

What all ranks hold alike is on every host, as each of these ranks writes all of it. The rest of a rank's part, its places in loaders and
its random streams, is fetched as soon as it is written. Large buffers that it copies for all ranks are on another host when it is
(:mod:`..engine.snapshot.replicas`), or are fetched too. So a snapshot outlives the loss of any host but the notebook's.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from ..cluster.base import Cluster
from ..engine.snapshot.rank_state import Snapshot
from ..engine.snapshot.snapshot_files import own_keys
from ..transport.base import SnapshotStore
from ..transport.blob_store import BlobFolder
from .snapshot_folder import SnapshotFolder

FETCHED = timedelta(seconds=10)
"""Time for parts that are on their way when they are needed."""


def snapshots_on(cluster: Cluster, name: str) -> SnapshotStore:
    """Return the snapshots that ranks of `cluster` write into the folder `name` of its buffers."""
    path = cluster.blob_dir / name
    return HostSnapshots(path, cluster) if cluster.spans_hosts else SnapshotFolder(path)


class HostSnapshots(SnapshotFolder):
    """Snapshots in a folder `path` that each host has for itself."""

    def __init__(self, path: Path, cluster: Cluster) -> None:
        super().__init__(path)
        self._cluster = cluster
        self._fetches: dict[int, list[Future[float]]] = {}
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="dtrain-parts")

    def note_part(self, number: int, rank: int) -> None:
        """Begin to fetch what `rank` has written."""
        with suppress(RuntimeError):  # the run is over, and its snapshots are gone
            self._fetches.setdefault(number, []).append(self._pool.submit(self._fetch, number, rank))

    def _fetch(self, number: int, rank: int) -> float:
        """Let the part of `rank` be here, and buffers that its host alone has; return the seconds that these took."""
        self._cluster.files.fetch([self._name(f"{number}-{rank}")], rank)
        snapshot: Snapshot = pickle.loads(super().part(number, rank))
        began, names = time.monotonic(), [self._name(f"{number}.blobs/{key}") for key in own_keys(snapshot)]
        self._cluster.files.fetch(self._cluster.files.on_one_host(names, rank), rank)
        took = time.monotonic() - began if names else 0.0
        if number not in self._fetches:  # nobody wants it any more
            super().remove(number)
        return took

    def is_safe(self, number: int, limit: timedelta = timedelta(0)) -> bool:
        """Return whether what each rank alone has is here too; a `ClusterError` or `OSError`: it cannot be."""
        fetches = self._fetches.get(number, [])
        if wait(fetches, limit.total_seconds()).not_done:
            return False
        for fetch in fetches:
            fetch.result()
        return True

    def seconds(self, number: int) -> float:
        """Return how long buffers of one rank were on their way, at most."""
        fetches = [fetch for fetch in self._fetches.get(number, ()) if fetch.done() and fetch.exception() is None]
        return max((fetch.result() for fetch in fetches), default=0.0)

    def pass_on(self, name: str, rank: int) -> None:
        """Bring a file to the host of rank 0."""
        with suppress(RuntimeError):
            self._pool.submit(self._cluster.files.pass_on, self._name(name), source=rank, target=0)

    def part(self, number: int, rank: int) -> bytes:
        """Return what `rank` has written of snapshot `number`."""
        self._wait(number)
        return super().part(number, rank)

    def blobs(self, number: int) -> BlobFolder:
        """Return the buffers of snapshot `number`, which are fetched when they are opened."""
        return _HostBlobs(super().blobs(number).path, self._cluster)

    def keep_here(self, number: int, *, world_size: int, keys: Iterable[str]) -> None:
        """Fetch all of a snapshot; what cannot be had is missed when the run goes on."""
        names = [f"{number}-{rank}" for rank in range(world_size)] + [f"{number}.blobs/{key}" for key in keys]
        self._cluster.files.find([self._name(name) for name in names])

    def publish(self, number: int, *, world_size: int, keys: Iterable[str]) -> bool:
        """Let every host have the parts of all ranks, and all buffers."""
        self._wait(number)
        names = [f"{number}-{rank}" for rank in range(world_size)] + [f"{number}.blobs/{key}" for key in keys]
        return self._cluster.files.spread([self._name(name) for name in names])

    def remove(self, number: int) -> None:
        """Remove a snapshot, on all hosts."""
        self._fetches.pop(number, None)
        super().remove(number)
        self._cluster.files.remove([self._name(f"{number}.blobs"), self._name(f"{number}-*")])

    def clear(self) -> None:
        """Remove the folder, on all hosts."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().clear()
        self._cluster.files.remove([self.path.name])

    def _name(self, name: str) -> str:
        return f"{self.path.name}/{name}"

    def _wait(self, number: int) -> None:
        wait(self._fetches.get(number, ()), FETCHED.total_seconds())  # what has not come is missed where it is needed


class _HostBlobs(BlobFolder):
    """Buffers of a folder that each host has for itself."""

    def __init__(self, path: Path, cluster: Cluster) -> None:
        super().__init__(path)
        self._cluster = cluster

    def open(self, key: str) -> memoryview:
        """Map a buffer, which any host has."""
        if self.missing([key]):
            self._cluster.files.find([str((self.path / key).relative_to(self._cluster.blob_dir))])
        return super().open(key)

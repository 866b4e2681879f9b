"""Snapshots of ranks on several hosts: each part in the memory of its rank's host, and on another host as well.

Replicated state is on every host, as each rank writes all of it. The rest of a rank's part (positions in loaders, RNG states) is fetched
to the notebook's host as soon as it is written. Large buffers that only one rank has are copied to another host first
(:mod:`..engine.snapshot.replicas`), or are fetched too. So a snapshot survives the loss of any host but the notebook's.
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
"""Time to wait for parts in flight when they are needed."""


def snapshots_on(cluster: Cluster, name: str) -> SnapshotStore:
    """Return the store of snapshots that ranks of `cluster` write into the folder `name` of its buffers."""
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
        """Start to fetch what `rank` has written."""
        with suppress(RuntimeError):  # the pool was shut down, as the run is over
            self._fetches.setdefault(number, []).append(self._pool.submit(self._fetch, number, rank))

    def _fetch(self, number: int, rank: int) -> float:
        """Fetch the part of `rank`, and buffers that only its host has; return the seconds that the buffers took."""
        self._cluster.files.fetch([self._name(f"{number}-{rank}")], rank)
        snapshot: Snapshot = pickle.loads(super().part(number, rank))
        began, names = time.monotonic(), [self._name(f"{number}.blobs/{key}") for key in own_keys(snapshot)]
        self._cluster.files.fetch(self._cluster.files.on_one_host(names, rank), rank)
        took = time.monotonic() - began if names else 0.0
        if number not in self._fetches:  # the snapshot was removed meanwhile
            super().remove(number)
        return took

    def is_safe(self, number: int, limit: timedelta = timedelta(0)) -> bool:
        """Return whether the parts and buffers of single hosts are here too; raise a `ClusterError` or `OSError` if that failed."""
        fetches = self._fetches.get(number, [])
        if wait(fetches, limit.total_seconds()).not_done:
            return False
        for fetch in fetches:
            fetch.result()
        return True

    def seconds(self, number: int) -> float:
        """Return the longest time that the buffers of a rank took."""
        fetches = [fetch for fetch in self._fetches.get(number, ()) if fetch.done() and fetch.exception() is None]
        return max((fetch.result() for fetch in fetches), default=0.0)

    def pass_on(self, name: str, rank: int) -> None:
        """Copy a file to the host of rank 0."""
        with suppress(RuntimeError):
            self._pool.submit(self._cluster.files.pass_on, self._name(name), source=rank, target=0)

    def part(self, number: int, rank: int) -> bytes:
        """Return the part of `rank` in snapshot `number`."""
        self._wait(number)
        return super().part(number, rank)

    def blobs(self, number: int) -> BlobFolder:
        """Return the store of the buffers of snapshot `number`, which fetches them when they are opened."""
        return _HostBlobs(super().blobs(number).path, self._cluster)

    def keep_here(self, number: int, *, world_size: int, keys: Iterable[str]) -> None:
        """Fetch all of a snapshot. Missing files are noticed when the run resumes."""
        names = [f"{number}-{rank}" for rank in range(world_size)] + [f"{number}.blobs/{key}" for key in keys]
        self._cluster.files.find([self._name(name) for name in names])

    def publish(self, number: int, *, world_size: int, keys: Iterable[str]) -> bool:
        """Copy the parts of all ranks and all buffers to every host; return whether that succeeded."""
        self._wait(number)
        names = [f"{number}-{rank}" for rank in range(world_size)] + [f"{number}.blobs/{key}" for key in keys]
        return self._cluster.files.spread([self._name(name) for name in names])

    def remove(self, number: int) -> None:
        """Remove a snapshot on all hosts."""
        self._fetches.pop(number, None)
        super().remove(number)
        self._cluster.files.remove([self._name(f"{number}.blobs"), self._name(f"{number}-*")])

    def clear(self) -> None:
        """Remove the folder on all hosts."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().clear()
        self._cluster.files.remove([self.path.name])

    def _name(self, name: str) -> str:
        return f"{self.path.name}/{name}"

    def _wait(self, number: int) -> None:
        wait(self._fetches.get(number, ()), FETCHED.total_seconds())  # the caller notices what is still missing


class _HostBlobs(BlobFolder):
    """Buffers of a folder that each host has for itself."""

    def __init__(self, path: Path, cluster: Cluster) -> None:
        super().__init__(path)
        self._cluster = cluster

    def open(self, key: str) -> memoryview:
        """Map a buffer, after fetching it from any host that has it."""
        if self.missing([key]):
            self._cluster.files.find([str((self.path / key).relative_to(self._cluster.blob_dir))])
        return super().open(key)

"""Interfaces for the transport of values and snapshots between processes.

A `BlobStore` holds large buffers by name, a `SnapshotStore` the parts of snapshots that the ranks have written. Between processes of one
host both are folders in shared memory (`blob_store.py`, `checkpoint/snapshot_folder.py`), which all processes map. Transport between hosts
is another implementation. `address` tells engines where the same store is; only implementations interpret it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path

OnProgress = Callable[[int, int], None]
"""Takes the number of bytes stored so far, and the total."""


class BlobStore(ABC):
    """Buffers by name. A name ends in the buffer's length and identifies its bytes: equal names mean equal contents."""

    @property
    @abstractmethod
    def address(self) -> Path:
        """Where engines find the store."""

    @abstractmethod
    def put_all(self, buffers: Sequence[memoryview], on_progress: OnProgress | None = None) -> list[str]:
        """Store `buffers` and return their keys in order.

        Parameters
        ----------
        buffers : sequence of memoryview
        on_progress : callable, optional
                Called a few times a second in this thread with the bytes stored so far and in all; buffers stored before do not count.

        Raises
        ------
        ClusterError
                There is no room for them, even after all other buffers were removed.
        """

    @abstractmethod
    def store(self, key: str, buffer: memoryview) -> None:
        """Store `buffer` under `key`, unless it is stored already."""

    @abstractmethod
    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return those of `keys` that are not stored."""

    @abstractmethod
    def open(self, key: str) -> memoryview:
        """Map a stored buffer privately: writes stay in this process."""

    @abstractmethod
    def discard(self, keys: Iterable[str]) -> None:
        """Remove stored buffers. Processes that have mapped one keep it."""

    @abstractmethod
    def trim(self, *, keep: Iterable[str], limit: int) -> None:
        """Remove the least recently used buffers except `keep` until at most `limit` bytes are stored."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """Bytes of unused buffers that may be kept for reruns."""


class SnapshotStore(ABC):
    """Snapshots of a run: for each number one part per rank, and the buffers that the parts refer to."""

    @property
    @abstractmethod
    def address(self) -> Path:
        """Where engines find the store."""

    @abstractmethod
    def part(self, number: int, rank: int) -> bytes:
        """Return the part of `rank` in snapshot `number`; raise an `OSError` if there is none."""

    @abstractmethod
    def put_part(self, number: int, rank: int, part: bytes) -> None:
        """Store `part` as that of `rank` in snapshot `number`."""

    @abstractmethod
    def blobs(self, number: int) -> BlobStore:
        """Return the store with the buffers of snapshot `number`, of all ranks."""

    def note_part(self, number: int, rank: int) -> None:  # noqa: B027  # on one host the part already is where it is needed
        """Note that `rank` has written its part of snapshot `number`. Any thread may call this; it does not block."""

    def is_safe(self, number: int, limit: timedelta = timedelta(0)) -> bool:  # noqa: ARG002  # one host is lost as a whole
        """Return whether snapshot `number` survives the loss of any engine or engine host; wait for that at most `limit`.

        Raises
        ------
        ClusterError, OSError
            The snapshot cannot be made safe.
        """
        return True

    def seconds(self, number: int) -> float:  # noqa: ARG002
        """Return how many seconds the network was busy with the buffers of a snapshot that :meth:`is_safe`."""
        return 0.0

    def pass_on(self, name: str, rank: int) -> None:  # noqa: B027  # on one host it is there
        """Make the file `name` that `rank` has left beside its snapshots available to rank 0. Any thread may call this without blocking."""

    def keep_here(self, number: int, *, world_size: int, keys: Iterable[str]) -> None:  # noqa: B027  # on one host it is
        """Copy a whole snapshot to the notebook's host, before the other hosts end."""

    def publish(self, number: int, *, world_size: int, keys: Iterable[str]) -> bool:  # noqa: ARG002
        """Make a snapshot of `world_size` ranks with these buffers available to all current engines; return whether that succeeded."""
        return True

    @abstractmethod
    def remove(self, number: int) -> None:
        """Remove a snapshot, if it exists."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all snapshots."""

"""How values and snapshots get from one process to another, whatever carries them.

A `BlobStore` has large buffers by name, a `SnapshotStore` what the ranks have written of themselves. Between the processes of one host both
are folders in shared memory (`blob_store.py`, `checkpoint/snapshot_folder.py`), which all map; a way between hosts is another
implementation. `address` is what the engines are told to find the same store by, and nothing but an implementation looks into it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path

OnProgress = Callable[[int, int], None]
"""Given how many of how many bytes are there."""


class BlobStore(ABC):
    """Buffers by name. A name ends in the buffer's length, and who has it can be sure of the bytes."""

    @property
    @abstractmethod
    def address(self) -> Path:
        """What an engine finds it by."""

    @abstractmethod
    def put_all(self, buffers: Sequence[memoryview], on_progress: OnProgress | None = None) -> list[str]:
        """Store `buffers` and return their keys in order.

        Parameters
        ----------
        buffers : sequence of memoryview
        on_progress : callable, optional
            Given, a few times a second and in this thread, how many of how many bytes are stored of those that were not there.

        Raises
        ------
        ClusterError
            There is no room for them, even without all others.
        """

    @abstractmethod
    def store(self, key: str, buffer: memoryview) -> None:
        """Store `buffer` under `key`, unless it is there."""

    @abstractmethod
    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return those of `keys` that are not stored."""

    @abstractmethod
    def open(self, key: str) -> memoryview:
        """Map a stored buffer. Writes to it are private to the process."""

    @abstractmethod
    def discard(self, keys: Iterable[str]) -> None:
        """Remove stored buffers. Processes that have opened one keep it."""

    @abstractmethod
    def trim(self, *, keep: Iterable[str], limit: int) -> None:
        """Remove the least recently used buffers but `keep` until at most `limit` bytes are stored."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """Bytes of unused buffers that may stay for reruns."""


class SnapshotStore(ABC):
    """Snapshots of a run: of each number a part for each rank, and the buffers that these refer to."""

    @property
    @abstractmethod
    def address(self) -> Path:
        """What an engine finds it by."""

    @abstractmethod
    def part(self, number: int, rank: int) -> bytes:
        """Return what `rank` has written of snapshot `number`; an `OSError` where that is not there."""

    @abstractmethod
    def put_part(self, number: int, rank: int, part: bytes) -> None:
        """Store what is to be the part of `rank`."""

    @abstractmethod
    def blobs(self, number: int) -> BlobStore:
        """Return the buffers of snapshot `number`, those of all ranks."""

    def note_part(self, number: int, rank: int) -> None:  # noqa: B027  # on one host it is where it is needed
        """Know that `rank` has written its part of snapshot `number`. Any thread may call this; it does not wait."""

    def is_safe(self, number: int, limit: timedelta = timedelta(0)) -> bool:  # noqa: ARG002  # one host is lost as a whole
        """Return whether all ranks' parts of snapshot `number` are where no loss of an engine takes them; waits for that at most `limit`.

        Raises
        ------
        ClusterError, OSError
            They cannot be there.
        """
        return True

    def seconds(self, number: int) -> float:  # noqa: ARG002
        """Return how long the network was busy with the buffers of a snapshot that :meth:`is_safe`."""
        return 0.0

    def pass_on(self, name: str, rank: int) -> None:  # noqa: B027  # on one host it is there
        """Let rank 0 find the file `name` that `rank` has left beside its snapshots. Any thread may call this; it does not wait."""

    def keep_here(self, number: int, *, world_size: int, keys: Iterable[str]) -> None:  # noqa: B027  # on one host it is
        """Let all of a snapshot be on the notebook's host, as the others are going to end."""

    def publish(self, number: int, *, world_size: int, keys: Iterable[str]) -> bool:  # noqa: ARG002
        """Let every engine that there is now find a snapshot, of so many ranks and with these buffers; return whether that can be."""
        return True

    @abstractmethod
    def remove(self, number: int) -> None:
        """Remove a snapshot; one that is not there is none."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all of them."""

"""A packed object graph as it is sent: the pickle stream and small buffers inline, large buffers as keys of blobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..serialization.leaves import Leaf
from ..serialization.pickler import Packed
from .base import BlobStore, OnProgress
from .blob_store import SMALLEST


class BlobSource(Protocol):
    """Source of stored buffers."""

    def open(self, key: str) -> memoryview:
        """Map a stored buffer privately: writes stay in this process."""


@dataclass(frozen=True)
class Parcel:
    """A packed graph with its large buffers replaced by keys.

    Attributes
    ----------
    stream : bytes
    leaves : list of Leaf
    parts : list of (bytes or str)
            For each leaf its bytes, or the key of the blob with them.
    """

    stream: bytes
    leaves: list[Leaf]
    parts: list[bytes | str]

    @property
    def keys(self) -> list[str]:
        """Keys of the blobs that the parcel refers to."""
        return [part for part in self.parts if isinstance(part, str)]

    @property
    def num_bytes(self) -> int:
        """Bytes that are sent inside the message."""
        return len(self.stream) + sum(len(part) for part in self.parts if isinstance(part, bytes))


def to_parcel(packed: Packed, blobs: BlobStore, on_progress: OnProgress | None = None) -> Parcel:
    """Store the large buffers of `packed` in `blobs`; progress is reported as by :meth:`.base.BlobStore.put_all`."""
    large = [index for index, buffer in enumerate(packed.buffers) if buffer.nbytes >= SMALLEST]
    keys = dict(zip(large, blobs.put_all([packed.buffers[index] for index in large], on_progress), strict=True))
    parts: list[bytes | str] = [keys.get(index) or bytes(buffer) for index, buffer in enumerate(packed.buffers)]
    return Parcel(packed.stream, packed.leaves, parts)


def from_parcel(parcel: Parcel, blobs: BlobSource) -> Packed:
    """Return the graph with its buffers mapped, all of them writable."""
    buffers = [blobs.open(part) if isinstance(part, str) else memoryview(bytearray(part)) for part in parcel.parts]
    return Packed(parcel.stream, parcel.leaves, buffers)

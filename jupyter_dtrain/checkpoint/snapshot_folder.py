"""Snapshots of a run in a folder that its ranks share, in the memory of their host."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..engine.snapshot.snapshot_files import snapshot_blobs, snapshot_file
from ..system.atomic_files import write_whole
from ..transport.base import SnapshotStore
from ..transport.blob_store import BlobFolder


class SnapshotFolder(SnapshotStore):
    """Snapshots in the folder `path`, which the ranks create with the first one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def address(self) -> Path:
        """The folder."""
        return self.path

    def part(self, number: int, rank: int) -> bytes:
        """Return the part of `rank` in snapshot `number`."""
        return snapshot_file(self.path, number, rank).read_bytes()

    def put_part(self, number: int, rank: int, part: bytes) -> None:
        """Write `part` as that of `rank` in snapshot `number`."""
        write_whole(snapshot_file(self.path, number, rank), part)

    def blobs(self, number: int) -> BlobFolder:
        """Return the store of the buffers of snapshot `number`."""
        return BlobFolder(snapshot_blobs(self.path, number))

    def remove(self, number: int) -> None:
        """Remove a snapshot, also an incomplete one."""
        shutil.rmtree(snapshot_blobs(self.path, number), ignore_errors=True)
        for file in self.path.glob(f"{number}-*"):
            file.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

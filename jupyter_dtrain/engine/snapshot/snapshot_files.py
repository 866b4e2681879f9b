"""Files of snapshots: paths, numbers, reading and writing of the ranks' parts."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from ...protocol import SnapshotTaken
from ...serialization.pickler import Packed
from ...system.atomic_files import write_whole
from ...transport.blob_store import BlobFolder
from ...transport.parcel import to_parcel
from ..resume.position import Position
from .put_together import FilledFiles
from .rank_state import Snapshot
from .replicas import Replicas

UNASKED = 1 << 32
"""Numbers from here on belong to snapshots that were not requested."""
NICENESS = 5  # of the writing thread; the cell's thread with 0 gets three times as much CPU time if it is scarce


def snapshot_file(folder: Path, number: int, rank: int) -> Path:
    """Return the file of `rank`'s part of snapshot `number`."""
    return folder / f"{number}-{rank}"


def snapshot_blobs(folder: Path, number: int) -> Path:
    """Return the folder of the buffers of snapshot `number`, of all ranks."""
    return folder / f"{number}.blobs"


def unasked_number(generation: int, count: int) -> int:
    """Return a unique number for the `count`-th snapshot of a generation that was not requested."""
    return (generation + 1) * UNASKED + count


def read_snapshot(folder: Path, number: int, rank: int) -> Snapshot:
    """Return a rank's part of a snapshot, completed with parts that other ranks have copied for it."""
    return assembled(lambda rank: snapshot_file(folder, number, rank).read_bytes(), rank)


def assembled(part: Callable[[int], bytes], rank: int) -> Snapshot:
    """Return the part of `rank` in a snapshot, completed from other ranks; `part` returns the bytes that a rank has written."""
    read = cache(lambda rank: pickle.loads(part(rank)))
    snapshot: Snapshot = read(rank)
    parts = list(snapshot.parcel.parts)
    for index, owner, common in snapshot.elsewhere:
        parts[index] = read(owner).parcel.parts[read(owner).common[common]]
    return replace(snapshot, parcel=replace(snapshot.parcel, parts=parts), elsewhere=())


def own_keys(snapshot: Snapshot) -> list[str]:
    """Return the names of the buffers that this rank has copied for all, which no other rank has."""
    parts = (snapshot.parcel.parts[index] for index in snapshot.common.values())
    return [key for key in parts if isinstance(key, str)]


class SnapshotWriter:
    """Writes a rank's parts in a low-priority thread while the cell continues.

    Parameters
    ----------
    folder : Path
    rank : int
    replicas : Replicas
        Receives the buffers that only this rank has.

    Attributes
    ----------
    before : list of Path
        Buffer folders of the rank's last snapshot, from which unchanged buffers are linked.
    """

    def __init__(self, folder: Path, rank: int, replicas: Replicas) -> None:
        self._folder, self._rank, self._replicas = folder, rank, replicas
        self.before: list[Path] = []
        self._thread: threading.Thread | None = None

    def begin(self, action: Callable[..., None], *args: object) -> None:
        """Call `action` in the thread, which must be idle."""

        def run() -> None:
            if sys.platform == "linux":  # where each thread has its own priority
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            action(*args)

        self._thread = threading.Thread(target=run, name="dtrain-snapshot", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the thread is idle."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def write(self, taken: SnapshotTaken, position: Position, packed: Packed, rest: bytes, files: FilledFiles) -> SnapshotTaken:
        """Write `packed`, the rest of the :class:`Snapshot` pickled in `rest`, and `files`; return `taken` completed."""
        folder = snapshot_blobs(self._folder, taken.number)
        blobs = BlobFolder(folder, self.before, in_place=True)
        parcel = files.put_into(to_parcel(packed, blobs), blobs)
        snapshot: Snapshot = replace(pickle.loads(rest), parcel=parcel)
        file = snapshot_file(self._folder, taken.number, self._rank)
        write_whole(file, pickle.dumps(snapshot, protocol=pickle.HIGHEST_PROTOCOL))
        self.before = [folder]
        took = self._replicas.send(folder, own_keys(snapshot))
        return replace(taken, place=position.describe(), keys=parcel.keys, seconds=taken.seconds + took)

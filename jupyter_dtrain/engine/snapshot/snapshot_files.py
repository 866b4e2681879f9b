"""The files of snapshots: where ranks keep what they have of each, under which number, how it is written and read."""

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
"""From here on, numbers are of snapshots that nobody has asked for."""
NICENESS = 5  # of the thread that writes; the cell's has none, and so three times its time where there is not enough


def snapshot_file(folder: Path, number: int, rank: int) -> Path:
    """Return where `rank` keeps its part of snapshot `number`."""
    return folder / f"{number}-{rank}"


def snapshot_blobs(folder: Path, number: int) -> Path:
    """Return where the buffers of snapshot `number` lie, those of all ranks."""
    return folder / f"{number}.blobs"


def unasked_number(generation: int, count: int) -> int:
    """Return the number of a snapshot that nobody has asked for, the `count`-th of a generation of ranks; no other has it."""
    return (generation + 1) * UNASKED + count


def read_snapshot(folder: Path, number: int, rank: int) -> Snapshot:
    """Return a rank's part of a snapshot, with what others have copied for it."""
    return assembled(lambda rank: snapshot_file(folder, number, rank).read_bytes(), rank)


def assembled(part: Callable[[int], bytes], rank: int) -> Snapshot:
    """Return what `rank` has in a snapshot, with what others have copied for it. `part` returns what a rank has written."""
    read = cache(lambda rank: pickle.loads(part(rank)))
    snapshot: Snapshot = read(rank)
    parts = list(snapshot.parcel.parts)
    for index, owner, common in snapshot.elsewhere:
        parts[index] = read(owner).parcel.parts[read(owner).common[common]]
    return replace(snapshot, parcel=replace(snapshot.parcel, parts=parts), elsewhere=())


def own_keys(snapshot: Snapshot) -> list[str]:
    """Return the names of the buffers that a rank has copied for all, as no other has them."""
    parts = (snapshot.parcel.parts[index] for index in snapshot.common.values())
    return [key for key in parts if isinstance(key, str)]


class SnapshotWriter:
    """Writes a rank's parts while the cell goes on, in a thread of low priority.

    Parameters
    ----------
    folder : Path
    rank : int
    replicas : Replicas
        Gets what this rank alone has.

    Attributes
    ----------
    before : list of Path
        The buffers of the rank's last snapshot: those that have not changed are linked from there.
    """

    def __init__(self, folder: Path, rank: int, replicas: Replicas) -> None:
        self._folder, self._rank, self._replicas = folder, rank, replicas
        self.before: list[Path] = []
        self._thread: threading.Thread | None = None

    def begin(self, action: Callable[..., None], *args: object) -> None:
        """Call `action` in the thread. Nothing else may be under way there."""

        def run() -> None:
            if sys.platform == "linux":  # where a priority is a thread's own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            action(*args)

        self._thread = threading.Thread(target=run, name="dtrain-snapshot", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def write(self, taken: SnapshotTaken, position: Position, packed: Packed, rest: bytes, files: FilledFiles) -> SnapshotTaken:
        """Write `packed`, the pickled :class:`Snapshot` without that, and what is in `files`; return what to tell of it."""
        folder = snapshot_blobs(self._folder, taken.number)
        blobs = BlobFolder(folder, self.before, in_place=True)
        parcel = files.put_into(to_parcel(packed, blobs), blobs)
        snapshot: Snapshot = replace(pickle.loads(rest), parcel=parcel)
        file = snapshot_file(self._folder, taken.number, self._rank)
        write_whole(file, pickle.dumps(snapshot, protocol=pickle.HIGHEST_PROTOCOL))
        self.before = [folder]
        took = self._replicas.send(folder, own_keys(snapshot))
        return replace(taken, place=position.describe(), keys=parcel.keys, seconds=taken.seconds + took)

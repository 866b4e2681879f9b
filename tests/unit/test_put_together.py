"""What is in parts on the ranks, put together in the files of a snapshot."""

from __future__ import annotations

import errno
import os

import pytest
import torch

from jupyter_dtrain.engine.dedup import Apart, Common, Held
from jupyter_dtrain.engine.snapshot.put_together import SMALLEST, FilledFiles
from jupyter_dtrain.engine.staging import Staging
from jupyter_dtrain.serialization.pickler import Packed
from jupyter_dtrain.transport.blob_store import BlobFolder, key_of
from jupyter_dtrain.transport.parcel import from_parcel, to_parcel

SIZES = (4 * SMALLEST, 100, 3 * SMALLEST + 8, 2 * SMALLEST)  # bytes


class Parts:
    """Storages with nothing in them, the third of which another rank is to have, and what is read into each."""

    def __init__(self) -> None:
        self.given: list[bool] = []
        self.numbers = [torch.randint(256, (size,), dtype=torch.uint8) for size in SIZES]
        self.held = tuple(
            Held(torch.zeros(size, dtype=torch.uint8).untyped_storage(), int(index == 2), "cpu", trained=True, read=self.reading(numbers))
            for index, (size, numbers) in enumerate(zip(SIZES, self.numbers, strict=True))
        )

    def reading(self, numbers):
        def read(into):
            self.given.append(into is not None)
            if into is not None:
                into.copy_(numbers)

        return read


def test_each_is_read_into_its_file_and_no_file_is_copied(tmp_path):
    parts = Parts()
    files = FilledFiles(tmp_path / "new", rank=0)
    files.fill(parts.held)
    assert parts.given == [True, True, False, True]
    common = Common((), rank=0, world_size=2, apart=Apart(held=parts.held))
    packed, where = common.add_own(Packed(b"stream"))
    written = {entry.stat().st_ino for entry in (tmp_path / "new").iterdir()}
    assert len(written) == 2  # what is small is in memory

    before = BlobFolder(tmp_path / "before")
    before.put(parts.numbers[3].numpy().data)  # which was stored with the snapshot before
    blobs = BlobFolder(tmp_path / "new", [before.path])
    packed = files.without(packed, common, where)
    packed = Packed(packed.stream, packed.leaves, Staging().copied(packed))
    parcel = files.put_into(to_parcel(packed, blobs), blobs)
    assert parcel.keys == [key_of(parts.numbers[index].numpy().data) for index in (0, 3)]
    assert sorted(entry.name for entry in (tmp_path / "new").iterdir()) == sorted(parcel.keys)
    assert (tmp_path / "new" / parcel.keys[0]).stat().st_ino in written
    assert (tmp_path / "new" / parcel.keys[1]).stat().st_nlink == 2
    read = from_parcel(parcel, blobs).buffers
    assert [bytes(buffer) for buffer in read] == [bytes(parts.numbers[index].numpy()) for index in (0, 1, 3)]


def test_a_rank_without_room_takes_part_and_then_says_so(tmp_path, monkeypatch):
    parts = Parts()
    files = FilledFiles(tmp_path, rank=0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        files.fill(parts.held)
    assert parts.given == [False] * len(SIZES)
    files.remove()
    assert not [*tmp_path.iterdir()]

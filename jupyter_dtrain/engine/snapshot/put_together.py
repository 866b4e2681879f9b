"""Assemble full tensors from the ranks' shards for a snapshot, directly in the snapshot's files: no rank has memory for all of them.

Each file is created, filled and unmapped before the next one, so a rank holds one tensor at a time. The cell waits for that, but not for
the files' names, which are hashes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch

from ...serialization.pickler import Packed
from ...system.atomic_files import UNFINISHED
from ...transport.blob_store import BlobFolder
from ...transport.parcel import Parcel
from ..dedup import Common, Held
from ..staging import check_memory

SMALLEST = 1 << 16  # bytes; smaller tensors are assembled in memory
_NOTHING = memoryview(b"")


class FilledFiles:
    """The files of one rank's part of a snapshot.

    Parameters
    ----------
    folder : Path
        Folder of the snapshot's buffers.
    rank : int
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank, self._numbers = folder, rank, count()
        self._files: dict[int, Path] = {}  # by the address of the storage
        self._by_leaf: dict[int, Path] = {}

    def fill(self, held: Sequence[Held]) -> None:
        """Assemble the tensors that this rank is to write. Collective.

        Raises
        ------
        OSError, MemoryError
            This rank has no room; the other ranks complete theirs.
        """
        failed: Exception | None = None
        sizes = [one.storage.nbytes() for one in held if one.read is not None]
        try:
            check_memory(0, of=sum(sizes), num_ranks=1)
        except MemoryError as error:
            failed = error
        for one in held:
            if one.read is None:
                continue
            into: torch.Tensor | None = None
            if one.rank == self._rank and failed is None:
                try:
                    into = self._room_for(one.storage)
                except Exception as error:
                    failed = error
            one.read(into)
        if failed is not None:
            raise failed

    def _room_for(self, storage: torch.UntypedStorage) -> torch.Tensor:
        if storage.nbytes() < SMALLEST:
            return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._folder / f"{UNFINISHED}{self._rank}-{next(self._numbers)}"
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._files[storage._cdata] = file
        try:
            os.posix_fallocate(handle, 0, storage.nbytes())  # writing to mapped memory without backing space kills the process
        finally:
            os.close(handle)
        return torch.from_file(str(file), shared=True, size=storage.nbytes(), dtype=torch.uint8)

    def without(self, packed: Packed, common: Common | None, where: Mapping[int, int]) -> Packed:
        """Return `packed` without the buffers that are in files.

        Parameters
        ----------
        packed : Packed
        common : Common, optional
        where : mapping of int to int
            By number of a common storage: the buffer's index, for those that this rank writes for all.
        """
        numbers = {} if common is None else common.elsewhere()
        self._by_leaf = {where[numbers[address]]: file for address, file in self._files.items()}
        return replace(packed, buffers=[_NOTHING if index in self._by_leaf else buffer for index, buffer in enumerate(packed.buffers)])

    def put_into(self, parcel: Parcel, blobs: BlobFolder) -> Parcel:
        """Store the files, and return `parcel` with their names."""
        keys = {index: blobs.take(file) for index, file in self._by_leaf.items()}
        return replace(parcel, parts=[keys.get(index, part) for index, part in enumerate(parcel.parts)])

    def remove(self) -> None:
        """Remove the files that have not been stored."""
        for file in self._files.values():
            with suppress(OSError):
                file.unlink(missing_ok=True)

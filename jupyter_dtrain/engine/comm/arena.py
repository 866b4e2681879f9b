"""Memory of each rank that all ranks may read at any time, without a word of the one that has it.

Ranks come to one layer of a model in different orders: `addmm` on one of them is `matmul` and `add` on another. A collective there would
wait for ever. So what is to be fetched lies in memory that has a file: the others read that file, into memory of their own (from another
host by a thread there, :mod:`.rank_server`). Whoever changes what lies there sees to it that nobody reads it meanwhile.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence

import torch

from .peer_files import PeerFile
from .shared_memory import SharedMemory

ALIGNED = 64  # bytes


class Arena:
    """Memory of every rank, of its own size each. Collective.

    Parameters
    ----------
    memory : SharedMemory
        Connects the ranks.
    num_bytes : int
        Of this rank.
    others : SharedMemory, optional
        Connects other ranks, which are to read it as well.
    """

    def __init__(self, memory: SharedMemory, num_bytes: int, *, others: SharedMemory | None = None) -> None:
        file = os.memfd_create("jupyter-dtrain-parameters", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, max(num_bytes, 1))
            self._own = torch.frombuffer(mmap.mmap(file, max(num_bytes, 1)), dtype=torch.uint8)
            self._files = memory.open_files(file)
            self._files_of_others = {} if others is None else others.open_files(file)
            self._memory = memory
        finally:
            os.close(file)  # what is mapped stays
        weakref.finalize(self, _close, (*self._files.values(), *self._files_of_others.values()))

    def own(self, offset: int, num_bytes: int) -> torch.Tensor:
        """Return a part of this rank's memory as bytes."""
        return self._own[offset : offset + num_bytes]

    def read(self, rank: int, offset: int, into: torch.Tensor) -> None:
        """Fill `into`, a flat tensor of bytes on the CPU, with what lies at `offset` of another rank's memory."""
        self._read(self._files[rank], offset, into)

    def read_of_others(self, rank: int, offset: int, into: torch.Tensor) -> None:
        """Do what :meth:`read` does, of a rank as it is numbered among the others."""
        self._read(self._files_of_others[rank], offset, into)

    def _read(self, file: PeerFile, offset: int, into: torch.Tensor) -> None:
        view = into.numpy().data
        file.read(view, offset)
        self._memory.num_read += len(view)


def offsets(sizes: Sequence[int]) -> list[int]:
    """Return where things of `sizes` bytes lie one behind the other, and last where they end."""
    found = [0]
    for size in sizes:
        found.append(found[-1] + -(-size // ALIGNED) * ALIGNED)
    return found


def _close(files: tuple[PeerFile, ...]) -> None:
    for file in files:
        file.close()

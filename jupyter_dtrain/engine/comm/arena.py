"""Memory of each rank that all ranks may read at any time, without its owner taking part.

Ranks may reach the layers of a model in different orders: `addmm` on one rank is `matmul` and `add` on another. A collective there would
deadlock. Therefore shards to be fetched lie in an in-memory file that other ranks read into their own memory (from another host through a
thread there, :mod:`.rank_server`). Whoever changes the memory must ensure that nobody reads it meanwhile.
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
    """Memory of every rank, of any size for each. Collective.

    Parameters
    ----------
    memory : SharedMemory
        Connects the ranks.
    num_bytes : int
        Size of this rank's memory.
    others : SharedMemory, optional
        Connects further ranks that may read it too.
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
            os.close(file)  # the mapping stays valid
        weakref.finalize(self, _close, (*self._files.values(), *self._files_of_others.values()))

    def own(self, offset: int, num_bytes: int) -> torch.Tensor:
        """Return a part of this rank's memory as a tensor of bytes."""
        return self._own[offset : offset + num_bytes]

    def read(self, rank: int, offset: int, into: torch.Tensor) -> None:
        """Fill `into`, a flat tensor of bytes on the CPU, from `offset` of another rank's memory."""
        self._read(self._files[rank], offset, into)

    def read_of_others(self, rank: int, offset: int, into: torch.Tensor) -> None:
        """Read as :meth:`read` does, from a rank numbered among `others`."""
        self._read(self._files_of_others[rank], offset, into)

    def _read(self, file: PeerFile, offset: int, into: torch.Tensor) -> None:
        view = into.numpy().data
        file.read(view, offset)
        self._memory.num_read += len(view)


def offsets(sizes: Sequence[int]) -> list[int]:
    """Return the aligned offsets of consecutive blocks of `sizes` bytes, and the end of the last."""
    found = [0]
    for size in sizes:
        found.append(found[-1] + -(-size // ALIGNED) * ALIGNED)
    return found


def _close(files: tuple[PeerFile, ...]) -> None:
    for file in files:
        file.close()

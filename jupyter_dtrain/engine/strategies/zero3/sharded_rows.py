"""Rows on each rank of what has the shape of a parameter, where all ranks may read them: a parameter's own, and what optimizers keep of it.

As nobody needs the rank's help to read them, a snapshot, the end of a cell, and one that others have left find all of it.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...comm.arena import Arena, offsets
from ...comm.shared_memory import SharedMemory
from ...tensor.batch_shard import BatchShard

quiet = torch._C.DisableTorchFunctionSubclass


class Kind(NamedTuple):
    """What is to have rows on each rank: its shape, its element type, and the rows of each rank."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    shares: tuple[BatchShard, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return torch.Size(self.shape[1:]).numel() * self.dtype.itemsize


class SharedRows:
    """The rows of one thing.

    Attributes
    ----------
    rows : Tensor
        This rank's, uninitialized at first. (r, ...)
    own : slice
        Which of all rows these are.
    """

    def __init__(self, kind: Kind, rank: int, arena: Arena, places: Sequence[int]) -> None:
        self.kind, self._rank, self._arena, self._places = kind, rank, arena, places
        share = kind.shares[rank]
        self.own = slice(share.start, share.stop)
        flat = arena.own(places[rank], share.num_samples * kind.row_bytes)
        self.rows = flat.view(kind.dtype).view(-1, *kind.shape[1:])

    def read(self, full: torch.Tensor) -> None:
        """Put the rows of all ranks into `full`, (R, ...), which is contiguous."""
        with quiet(), torch.no_grad():
            flat, row = full.view(-1).view(torch.uint8), self.kind.row_bytes
            full[self.own].copy_(self.rows)
            for rank, share in enumerate(self.kind.shares):
                if rank != self._rank and share.num_samples:
                    self._arena.read(rank, self._places[rank], flat[share.start * row : share.stop * row])

    def read_of(self, ranks: Sequence[int], into: torch.Tensor) -> None:
        """Put the rows of `ranks`, one after the other, into `into`, which is contiguous."""
        with quiet(), torch.no_grad():
            flat, row, done = into.view(-1).view(torch.uint8), self.kind.row_bytes, 0
            for rank in ranks:
                size = self.kind.shares[rank].num_samples * row
                place = flat[done : done + size]
                if rank == self._rank:
                    place.copy_(self.rows.view(-1).view(torch.uint8))
                elif size:
                    self._arena.read(rank, self._places[rank], place)
                done += size

    def read_into(self, full: torch.Tensor | None) -> None:
        """Do what :meth:`read` does, if anything is given."""
        if full is not None:
            self.read(full)


def allocate(memory: SharedMemory, kinds: Sequence[Kind]) -> list[SharedRows]:
    """Return memory for the rows of `kinds`, the same on all ranks. Collective."""
    sizes = [[kind.shares[rank].num_samples * kind.row_bytes for kind in kinds] for rank in range(memory.num_ranks)]
    places = [offsets(of_rank) for of_rank in sizes]
    arena = Arena(memory, places[memory.rank][-1])
    return [SharedRows(kind, memory.rank, arena, [place[index] for place in places]) for index, kind in enumerate(kinds)]


def give_back(tensor: torch.Tensor) -> None:
    """Let the system have the pages of `tensor`, whose numbers nobody needs: those of a file that is mapped are as in the file again."""
    with quiet():
        address, num_bytes = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + num_bytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
        _madvise(first, length, mmap.MADV_DONTNEED)


_madvise = ctypes.CDLL(None).madvise if hasattr(ctypes.CDLL(None), "madvise") else lambda *_: 0
if hasattr(_madvise, "argtypes"):
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

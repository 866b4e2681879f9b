"""Rows on each rank of what has the shape of a parameter, where all ranks may read them: a parameter's own, and what optimizers keep of it.

"Rows" are slices along dim 0, or along another one where a rank computes with those (a linear layer that is divided by what it takes).

As nobody needs the rank's help to read them, a snapshot, the end of a cell, and one that others have left find all of it.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ...comm.arena import Arena, offsets
from ...comm.shared_memory import SharedMemory
from ...tensor.batch_shard import BatchShard

quiet = torch._C.DisableTorchFunctionSubclass


class Kind(NamedTuple):
    """What is to have rows on each rank: its shape, its element type, and the rows of each rank along which dim."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    shares: tuple[BatchShard, ...]
    dim: int = 0

    def shape_of(self, *ranks: int) -> tuple[int, ...]:
        """Return the shape of the rows of some ranks."""
        return (*self.shape[: self.dim], sum(self.shares[rank].num_samples for rank in ranks), *self.shape[self.dim + 1 :])

    def num_bytes(self, rank: int) -> int:
        """Return how many bytes a rank's rows take."""
        return torch.Size(self.shape_of(rank)).numel() * self.dtype.itemsize

    def rows_of(self, rank: int) -> Any:
        """Return the index of a rank's rows."""
        rows = slice(self.shares[rank].start, self.shares[rank].stop)
        return (*[slice(None)] * self.dim, rows) if self.dim else rows


class SharedRows:
    """The rows of one thing.

    Attributes
    ----------
    rows : Tensor
        This rank's, uninitialized at first. (r, ...)
    own : slice or tuple
        The index of these.
    """

    def __init__(self, kind: Kind, rank: int, arena: Arena, places: Sequence[int]) -> None:
        self.kind, self._rank, self._arena, self._places = kind, rank, arena, places
        self.own = kind.rows_of(rank)
        self.rows = arena.own(places[rank], kind.num_bytes(rank)).view(kind.dtype).view(kind.shape_of(rank))

    def read(self, full: torch.Tensor) -> None:
        """Put the rows of all ranks into `full`, (R, ...), which is contiguous."""
        with quiet(), torch.no_grad():
            for rank in range(len(self.kind.shares)):
                self._read_part(rank, full[self.kind.rows_of(rank)])

    def read_of(self, ranks: Sequence[int], into: torch.Tensor) -> None:
        """Put the rows of `ranks`, one after the other, into `into`, which is contiguous."""
        with quiet(), torch.no_grad():
            sizes = [self.kind.shares[rank].num_samples for rank in ranks]
            for rank, part in zip(ranks, into.split(sizes, self.kind.dim), strict=True):
                self._read_part(rank, part)

    def _read_part(self, rank: int, into: torch.Tensor) -> None:
        if rank == self._rank:
            into.copy_(self.rows)
        elif into.numel():
            part = into if into.is_contiguous() else torch.empty(into.shape, dtype=into.dtype)
            self._arena.read(rank, self._places[rank], part.view(-1).view(torch.uint8))
            if part is not into:
                into.copy_(part)

    def read_into(self, full: torch.Tensor | None) -> None:
        """Do what :meth:`read` does, if anything is given."""
        if full is not None:
            self.read(full)


def allocate(memory: SharedMemory, kinds: Sequence[Kind]) -> list[SharedRows]:
    """Return memory for the rows of `kinds`, the same on all ranks. Collective."""
    sizes = [[kind.num_bytes(rank) for kind in kinds] for rank in range(memory.num_ranks)]
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

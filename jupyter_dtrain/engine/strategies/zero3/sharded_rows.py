"""Shards of a tensor with the shape of a parameter, in memory that all ranks can read: parameters, and the state of optimizers.

A shard is a slice along dim 0 ("rows"), or along dim 1 of a linear layer that is row-parallel. A parameter that is several of equal size
stacked on each other (queries, keys and values of an attention) is sharded within each of them.

Reading takes no part of the rank that owns a shard. So a snapshot, the end of a cell, and a rank that the others have left can
put the full tensor together.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ....system.page_map import is_mapped_file
from ...comm.arena import Arena, offsets
from ...comm.shared_memory import SharedMemory
from ...tensor.batch_shard import BatchShard
from ...timing import COMMUNICATION, Counted

quiet = torch._C.DisableTorchFunctionSubclass


class Kind(NamedTuple):
    """How a tensor is sharded: its shape and dtype, and the rows of each rank along `dim`.

    `shares` are the rows of each rank within each of `groups` parts of equal size, which are stacked along `dim`.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    shares: tuple[BatchShard, ...]
    dim: int = 0
    groups: int = 1

    def shape_of(self, *ranks: int) -> tuple[int, ...]:
        """Return the shape of the rows of some ranks together."""
        size = self.groups * sum(self.shares[rank].num_samples for rank in ranks)
        return (*self.shape[: self.dim], size, *self.shape[self.dim + 1 :])

    def num_bytes(self, rank: int) -> int:
        """Return the size of a rank's rows in bytes."""
        return torch.Size(self.shape_of(rank)).numel() * self.dtype.itemsize

    def rows_of(self, rank: int) -> Any:
        """Return the index that selects a rank's rows of the full tensor."""
        share = self.shares[rank]
        rows: Any = slice(share.start, share.stop)
        if self.groups > 1:
            rows = torch.cat([torch.arange(share.start, share.stop, device="cpu") + group * share.total for group in range(self.groups)])
        return (*[slice(None)] * self.dim, rows) if self.dim else rows

    def parts_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a view of rows in which dim `dim` is split into the groups, if there are several, and the rows of each."""
        return rows.unflatten(self.dim, (self.groups, -1)) if self.groups > 1 else rows

    @property
    def dim_of_parts(self) -> int:
        """The dim of the rows in what :meth:`parts_of` returns."""
        return self.dim + (self.groups > 1)

    def place_of(self, rank: int, full: torch.Tensor) -> torch.Tensor:
        """Return the view of a rank's rows in `full`, which is contiguous, in the layout of :meth:`parts_of`."""
        return self.parts_of(full).narrow(self.dim_of_parts, self.shares[rank].start, self.shares[rank].num_samples)


class SharedRows:
    """The shards of one tensor.

    Attributes
    ----------
    rows : Tensor
        This rank's, uninitialized at first. (r, ...)
    own : slice, Tensor or tuple
        The index that selects them in the full tensor.
    """

    def __init__(self, kind: Kind, rank: int, arena: Arena, places: Sequence[int]) -> None:
        self.kind, self._rank, self._arena, self._places = kind, rank, arena, places
        self.own = kind.rows_of(rank)
        self.rows = self._of_arena(places[rank], rank)

    def fill(self, full: torch.Tensor) -> None:
        """Copy this rank's rows from `full`, (R, ...)."""
        self.rows.copy_(full[self.own])

    def refresh(self) -> None:
        """Update this rank's replicas of other ranks' rows; there are none here."""

    def read(self, full: torch.Tensor) -> None:
        """Gather the rows of all ranks into `full`, (R, ...), which is contiguous."""
        with quiet(), torch.no_grad():
            for rank in range(len(self.kind.shares)):
                self._read_part(rank, self.kind.place_of(rank, full))

    def read_of(self, ranks: Sequence[int], into: torch.Tensor) -> None:
        """Concatenate the rows of `ranks` in `into`, which is contiguous."""
        with quiet(), torch.no_grad():
            sizes = [self.kind.shares[rank].num_samples for rank in ranks]
            for rank, part in zip(ranks, self.kind.parts_of(into).split(sizes, self.kind.dim_of_parts), strict=True):
                self._read_part(rank, part)

    def _read_part(self, rank: int, into: torch.Tensor) -> None:
        if rank == self._rank:
            into.copy_(self.kind.parts_of(self.rows))
        elif into.numel():
            part = into if into.is_contiguous() else torch.empty(into.shape, dtype=into.dtype, device="cpu")
            self._arena.read(*self._nearest(rank), part.view(-1).view(torch.uint8))
            if part is not into:
                into.copy_(part)

    def _nearest(self, rank: int) -> tuple[int, int]:
        """Return which rank to read the rows of `rank` from, and their offset in its memory."""
        return rank, self._places[rank]

    def _of_arena(self, place: int, rank: int) -> torch.Tensor:
        """Return the rows of `rank` that are at offset `place` of this rank's memory."""
        return self._arena.own(place, self.kind.num_bytes(rank)).view(self.kind.dtype).view(self.kind.shape_of(rank))

    def read_into(self, full: torch.Tensor | None) -> None:
        """Do as :meth:`read`, unless `full` is ``None``."""
        if full is not None:
            self.read(full)


def allocate(memory: SharedMemory, kinds: Sequence[Kind]) -> list[SharedRows]:
    """Allocate memory for the rows of `kinds`, the same on all ranks. Collective."""
    sizes = [[kind.num_bytes(rank) for kind in kinds] for rank in range(memory.num_ranks)]
    places = [offsets(of_rank) for of_rank in sizes]
    arena = Arena(memory, places[memory.rank][-1])
    return [SharedRows(kind, memory.rank, arena, [place[index] for place in places]) for index, kind in enumerate(kinds)]


def put_together(kind: Kind, memory: SharedMemory, own: torch.Tensor, into: torch.Tensor | None) -> None:
    """Gather rows that are not in shared memory, such as those of a gradient, on the ranks that give an `into`. Collective.

    Parameters
    ----------
    kind : Kind
    memory : SharedMemory
        Connects the ranks.
    own : Tensor
        (r, ...)
    into : Tensor, optional
        Contiguous. (R, ...)
    """
    parts: list[list[torch.Tensor]] = []
    with quiet(), torch.no_grad(), Counted(COMMUNICATION):
        places = [] if into is None else [kind.place_of(source, into) for source in range(memory.num_ranks)]
        found = [place if place.is_contiguous() else torch.empty(place.shape, dtype=place.dtype, device="cpu") for place in places]
        for source in range(memory.num_ranks):
            if source == memory.rank:
                rows = own.contiguous()
            elif found:
                rows = found[source]
            else:
                rows = torch.empty(kind.shape_of(source), dtype=own.dtype, device="meta")
            parts.append([rows.reshape(-1).view(torch.uint8)])
        memory.exchange(parts)
        for source, (place, rows) in enumerate(zip(places, found, strict=True)):
            if source == memory.rank:
                place.copy_(kind.parts_of(own))
            elif place is not rows:
                place.copy_(rows)


def give_back(tensor: torch.Tensor) -> None:
    """Give the pages of `tensor`, whose values are not needed, back to the system. Pages of a mapped file get the file's contents again."""
    with quiet():
        address, num_bytes = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = address + num_bytes - first
    if not _is_mapped(tensor):  # the last page may be used by others
        length = length // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
        _madvise(first, length, mmap.MADV_DONTNEED)


class Came:
    """Values of a tensor from the notebook, whose memory is given back and used for others. Those of a mapped file need no copy."""

    def __init__(self, tensor: torch.Tensor) -> None:
        with quiet(), torch.no_grad():
            self._copy = None if _is_mapped(tensor) else tensor.detach().clone()
        give_back(tensor)

    def restore(self, tensor: torch.Tensor) -> None:
        """Let `tensor`, the same one, have them again."""
        give_back(tensor)
        if self._copy is not None:
            with quiet(), torch.no_grad():
                tensor.detach().copy_(self._copy)


def _is_mapped(tensor: torch.Tensor) -> bool:
    """Return whether the memory of a tensor from the notebook is a mapped file of its own."""
    with quiet():
        storage = tensor.untyped_storage()
        return not storage.resizable() and is_mapped_file(storage.data_ptr(), storage.nbytes())


_madvise = ctypes.CDLL(None).madvise if hasattr(ctypes.CDLL(None), "madvise") else lambda *_: 0
if hasattr(_madvise, "argtypes"):
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

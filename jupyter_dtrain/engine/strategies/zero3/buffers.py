"""Memory for what is whole for a moment: parameters of a unit in its call, rows of gradients from step to step, whole gradients.

Engines ask glibc to return nothing to the system while a cell runs, so that a step finds the memory of the one before. For blocks of a
parameter's size that come and go between smaller ones this fails: a hole is soon taken by something small, and the heap grows by another
block. So what is ours lies outside the heap and is used again, and what autograd and optimizers make goes back when they free it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ....system.resources import give_back_at_once
from .sharded_rows import quiet

_SMALLEST = 1 << 20
"""Bytes from which on new memory, which the system gives a page at a time, costs little beside what it is for."""


class BufferPool:
    """Blocks of memory, each given out again once nobody but the pool holds it: what a cell or a graph keeps is its own."""

    def __init__(self) -> None:
        self._blocks: list[torch.UntypedStorage] = []  # the least recently used first

    @property
    def num_bytes(self) -> int:
        """How many bytes there are, given out or not."""
        return sum(block.nbytes() for block in self._blocks)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of undefined numbers."""
        size = torch.Size(shape).numel() * dtype.itemsize  # and no more: what a snapshot has of it is all of a tensor
        with quiet(), torch.no_grad():
            block = next((block for block in reversed(self._blocks) if block.nbytes() == size and _is_free(block)), None)
            if block is None:
                block = _new(size)
            self._forget(block)
            self._blocks.append(block)
            # No view of another tensor: that would hold the block too, and count as somebody who does.
            strides = torch.empty(tuple(shape), device="meta").stride()
            return torch.empty(0, dtype=dtype).set_(block, 0, tuple(shape), strides)

    def has(self, storage: torch.UntypedStorage) -> bool:
        """Return whether a block is of this pool."""
        return any(block._cdata == storage._cdata for block in self._blocks)

    def trim(self, limit: int) -> None:
        """Let the system have the least recently used of what is free, until that is at most `limit` bytes."""
        free = [block for block in self._blocks if _is_free(block)]
        num_bytes = sum(block.nbytes() for block in free)
        for block in free:
            if num_bytes <= limit:
                break
            num_bytes -= block.nbytes()
            self._forget(block)

    def _forget(self, block: torch.UntypedStorage) -> None:
        self._blocks = [other for other in self._blocks if other is not block]


class FreedMemory:
    """Lets what is freed of the size of a parameter go back to the system."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._is_on = False

    def know(self, sizes: Sequence[int]) -> None:
        """Note the sizes of parameters that are sharded."""
        self._sizes += sizes
        self._set()

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Give it back until the end of the ``with`` block."""
        self._is_on = True
        try:
            self._set()
            yield
        finally:
            self._is_on = False
            give_back_at_once(None)

    def _set(self) -> None:
        if self._is_on and self._sizes:
            give_back_at_once(max(size_of_most(self._sizes), _SMALLEST))


def size_of_most(sizes: Sequence[int]) -> int:
    """Return the size from which on things have nine tenths of all bytes."""
    left = sum(sizes) / 10
    for size in sorted(sizes):
        left -= size
        if left <= 0:
            return size
    return 0


def _is_free(block: torch.UntypedStorage) -> bool:
    return bool(torch._C._storage_Use_Count(block._cdata) == 1)  # that of `block`


def _new(size: int) -> torch.UntypedStorage:
    if not size:
        return torch.UntypedStorage(0)
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()

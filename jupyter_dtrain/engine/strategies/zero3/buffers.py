"""Buffers for gathered parameters and for rows of gradients, reused from step to step.

Engines keep freed memory while a cell runs, so that a step finds the memory of the one before. With blocks of a parameter's size between
smaller ones this fragments the heap: a hole is soon taken by something small, and the heap grows by another block. So these buffers lie
outside the heap, and memory of this size that autograd and optimizers free goes back to the system.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ....system.resources import give_back_at_once
from .sharded_rows import quiet

_SMALLEST = 1 << 20
"""Size in bytes above which the page faults of new memory cost little beside the copy into it."""


class BufferPool:
    """Blocks of memory, each reused once only the pool references it: a block that the cell or a graph keeps is not touched."""

    def __init__(self) -> None:
        self._blocks: list[torch.UntypedStorage] = []  # the least recently used first

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks, in use or not."""
        return sum(block.nbytes() for block in self._blocks)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized tensor, whose version counter counts writes in ``torch.inference_mode()``, too."""
        size = torch.Size(shape).numel() * dtype.itemsize  # and no more: what a snapshot has of it is all of a tensor
        with quiet(), torch.no_grad():
            block = next((block for block in reversed(self._blocks) if block.nbytes() == size and _is_free(block)), None)
            if block is None:
                block = _new(size)
            self._forget(block)
            self._blocks.append(block)
            # No view of another tensor: that would hold the block too, and count as somebody who does.
            strides = torch.empty(tuple(shape), device="meta").stride()
            with torch.inference_mode(mode=False):
                return torch.empty(0, dtype=dtype, device="cpu").set_(block, 0, tuple(shape), strides)

    def has(self, storage: torch.UntypedStorage) -> bool:
        """Return whether `storage` is a block of this pool."""
        return any(block._cdata == storage._cdata for block in self._blocks)

    def trim(self, limit: int) -> None:
        """Free the least recently used blocks that are not in use, until these take at most `limit` bytes."""
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
    """Makes the allocator return freed memory of the size of a parameter to the system."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._is_on = False

    def know(self, sizes: Sequence[int]) -> None:
        """Note the sizes of parameters that are sharded."""
        self._sizes += sizes
        self._set()

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Return such memory in the ``with`` block."""
        self._is_on = True
        try:
            self._set()
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Let the allocator keep freed memory again: for steps that allocate what the one before has freed."""
        self._is_on = False
        give_back_at_once(None)

    def _set(self) -> None:
        if self._is_on and self._sizes:
            give_back_at_once(max(size_of_most(self._sizes), _SMALLEST))


def size_of_most(sizes: Sequence[int]) -> int:
    """Return the largest size such that sizes from it on add up to nine tenths of all bytes."""
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

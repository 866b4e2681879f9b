"""Memory for what is whole for a moment, used again: parameters of a unit in its call, and rows of gradients from step to step.

Engines ask glibc to return nothing to the system while a cell runs, so that a step finds the memory of the one before. For blocks of a
parameter's size that come and go between smaller ones this fails: a hole is soon taken by something small, and the heap grows by another
block. These here lie outside the heap, and go back to the system when they are let go.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

from .sharded_rows import quiet


class BufferPool:
    """Blocks of memory, each given out again once nobody but the pool holds it: what a cell or a graph keeps is its own."""

    def __init__(self) -> None:
        self._blocks: list[torch.UntypedStorage] = []  # the least recently used first

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of undefined numbers."""
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with quiet(), torch.no_grad():
            block = next((block for block in reversed(self._blocks) if block.nbytes() == size and _is_free(block)), None)
            if block is None:
                block = _new(size)
            self._forget(block)
            self._blocks.append(block)
            # No view of another tensor: that would hold the block too, and count as somebody who does.
            strides = torch.empty(tuple(shape), device="meta").stride()
            return torch.empty(0, dtype=dtype).set_(block, 0, tuple(shape), strides)

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


def _is_free(block: torch.UntypedStorage) -> bool:
    return bool(torch._C._storage_Use_Count(block._cdata) == 1)  # that of `block`


def _new(size: int) -> torch.UntypedStorage:
    memory = mmap.mmap(-1, max(size, mmap.PAGESIZE))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()

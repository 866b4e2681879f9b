"""Gradients of ranks that share memory, averaged where they lie when a backward pass is over.

PyTorch's reducer copies each gradient into a bucket, and what has come of it back: as much again as the exchange itself, where that is done
by memory. Its buckets are for networks, which send one while the pass goes on; a processor that copies does not compute meanwhile. Small
gradients are put together here too, as an exchange costs more than they do.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import torch
import torch.distributed as dist

from ..ranks.process_group import near
from ..ranks.shared_memory import SLOT, SharedMemory
from .reducer import BucketReducer, Reducer, all_reached

SMALL = SLOT // 8
"""Bytes of a gradient that is put together with others."""


class NearReducer(Reducer):
    """Averages gradients over the ranks that `memory` connects; every backward pass reaches all leaves on each of them."""

    def __init__(self, leaves: list[torch.Tensor], slot: torch.Tensor | None, memory: SharedMemory) -> None:
        super().__init__(leaves, slot)
        self._memory = memory

    def finish(self) -> None:
        """Average the gradients over the ranks."""
        dense: list[torch.Tensor] = []
        with torch.no_grad():
            for leaf in self._leaves:
                if leaf.grad is None:
                    continue
                if leaf.grad.layout == torch.strided:
                    dense.append(leaf.grad)
                else:  # of `F.embedding(…, sparse=True)`
                    leaf.grad = leaf.grad / self._memory.num_ranks
                    dist.all_reduce(leaf.grad)
            for gradients in _together(dense):
                self._average(gradients)

    def _average(self, gradients: Sequence[torch.Tensor]) -> None:
        first = gradients[0]
        if len(gradients) == 1 and first.is_contiguous():
            self._memory.all_reduce(first, factor=1.0 / self._memory.num_ranks)
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self._memory.all_reduce(flat, factor=1.0 / self._memory.num_ranks)
        for gradient, values in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(values.view(gradient.shape))


def _together(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield gradients that go in one exchange: small ones of a type up to the size of a slot, in their order, and others by themselves."""
    waiting: dict[torch.dtype, list[torch.Tensor]] = {}
    for gradient in gradients:
        if gradient.nbytes > SMALL:
            yield [gradient]
            continue
        group = waiting.setdefault(gradient.dtype, [])
        if sum(other.nbytes for other in group) + gradient.nbytes > SLOT:
            yield group
            group = waiting[gradient.dtype] = []
        group.append(gradient)
    yield from waiting.values()


def reducer_for(leaves: list[torch.Tensor], slot: torch.Tensor | None, *, sparse: Container[int], complete: bool) -> Reducer:
    """Return a new reducer of `leaves`, PyTorch's own unless the ranks share memory. A collective.

    Parameters
    ----------
    leaves, slot, sparse
        As in :class:`.BucketReducer`.
    complete : bool
        Whether this rank's backward pass reaches all of them.
    """
    reached, memory = all_reached(complete), near()
    plain = all(leaf.device.type == "cpu" and leaf.layout == torch.strided and id(leaf) not in sparse for leaf in leaves)
    if reached and plain and memory is not None:
        return NearReducer(leaves, slot, memory)
    return BucketReducer(leaves, slot, sparse=sparse, may_lack_leaves=not reached)

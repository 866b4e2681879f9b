"""Reduce sparse gradients, and gradients that only some ranks have, after the backward pass.

The gradients that a pass leaves decide what to reduce, not attributes of layers: an embedding may be unused, tied to a dense layer, or
called by ``F.embedding(…, sparse=True)``. The ranks all-gather one byte per leaf, which says whether the pass reached it and whether its
gradient is dense. PyTorch's reducer does not support sparse gradients of leaves that a pass does not reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..comm.batch_ranks import num_batch_ranks
from ..comm.collectives import all_gather
from .failed_pass import has_come_to, noted
from .gradient_reducers import Reducer

_REACHED, _DENSE = 1, 2


class AgreeingReducer(Reducer):
    """Averages the gradients of leaves that any rank has reached, each in the layout (dense or sparse) that one process would have."""

    may_lack_leaves = True

    def prepare(self, roots: list[torch.Tensor], gradients: list[torch.Tensor | None], value: torch.Tensor | None) -> None:
        """Prepare a backward pass, and record the gradients before it."""
        super().prepare(roots, gradients, value)
        self._before = [noted(leaf) for leaf in self._leaves]

    def finish(self) -> None:
        """Average the gradients over the ranks. A collective."""
        of_ranks = self._told()
        reached, dense = ((of_ranks & bit).bool() for bit in (_REACHED, _DENSE))
        wanted = reached.any(dim=0).tolist()
        together, had = dense.any(dim=0).tolist(), [before is not None for _, before, _ in self._before]
        to_average: list[torch.Tensor] = []
        sparse: list[int] = []
        with torch.no_grad():
            for index, leaf in enumerate(self._leaves):
                if not wanted[index]:
                    continue  # no rank has reached it: no gradient, as on one process
                if not together[index]:
                    sparse.append(index)
                    continue
                if leaf.grad is None:
                    leaf.grad = torch.zeros_like(leaf)
                elif leaf.grad.layout != torch.strided:
                    leaf.grad = leaf.grad.to_dense()
                to_average.append(leaf.grad)
            self._average(to_average)
            self._join([self._leaves[index] for index in sparse], [had[index] for index in sparse])
        self._before = []

    def _told(self) -> torch.Tensor:
        """All-gather the bits ``_REACHED`` and ``_DENSE`` of each leaf: shape (ranks, leaves). A collective."""
        own = torch.zeros(len(self._leaves), dtype=torch.uint8, device="cpu")
        for index, before in enumerate(self._before):
            if (grad := before[0].grad) is not None:
                own[index] = has_come_to(before) * _REACHED + (grad.layout == torch.strided) * _DENSE
        parts = [torch.empty_like(own) for _ in range(num_batch_ranks())]
        all_gather(parts, own)
        return torch.stack(parts)

    @staticmethod
    def _join(leaves: Sequence[torch.Tensor], had: Sequence[bool]) -> None:
        """Concatenate the sparse gradients of all ranks, in rank order as the samples lie, divided by the number of ranks. A collective.

        `had`: whether a leaf had a gradient before the pass. Each rank's gradient then includes it, so the result is coalesced.
        """
        if not leaves:
            return
        num_ranks = num_batch_ranks()
        own = [_entries(leaf) for leaf in leaves]
        counts = torch.tensor([indices.shape[1] for indices, _ in own], device="cpu")
        of_ranks = [torch.empty_like(counts) for _ in range(num_ranks)]
        all_gather(of_ranks, counts)
        for number, (leaf, has_before, (indices, values)) in enumerate(zip(leaves, had, own, strict=True)):
            sizes = [int(of_rank[number]) for of_rank in of_ranks]
            joined = torch.sparse_coo_tensor(
                _gathered(indices.T, sizes).T, _gathered(values / num_ranks, sizes), leaf.shape, device=leaf.device, check_invariants=False
            )
            leaf.grad = joined.coalesce() if has_before else joined


def _entries(leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices and values of a leaf's sparse gradient; empty ones if it has no gradient."""
    grad = leaf.grad
    if grad is None:  # this rank has looked up no row
        return torch.empty((1, 0), dtype=torch.long, device=leaf.device), leaf.detach().new_empty((0, *leaf.shape[1:]))
    return grad._indices(), grad._values()


def _gathered(rows: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """All-gather `rows`, of which rank ``i`` has ``sizes[i]``, and concatenate them in rank order. A collective."""
    most = max(sizes)
    own = torch.cat([rows, rows.new_zeros((most - len(rows), *rows.shape[1:]))]).contiguous()
    parts = [torch.empty_like(own) for _ in sizes]
    all_gather(parts, own)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

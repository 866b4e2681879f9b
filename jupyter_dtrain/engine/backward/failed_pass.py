"""Restore consistent gradients after the backward pass of a rank has failed and the cell has caught the error."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..comm.batch_ranks import batch_rank, num_batch_ranks
from ..tensor.redistribute import Exchange

Noted = tuple[torch.Tensor, torch.Tensor | None, int | None]
"""A leaf, its gradient before a pass, and the version of that gradient."""


def noted(leaf: torch.Tensor) -> Noted:
    """Record the current gradient of a leaf."""
    return leaf, leaf.grad, None if leaf.grad is None else leaf.grad._version


def has_come_to(before_pass: Noted) -> bool:
    """Return whether a pass has added to the gradient of a leaf since it was recorded."""
    leaf, before, version = before_pass
    return leaf.grad is not None and (leaf.grad is not before or leaf.grad._version != version)


def as_if_failed(rank: int, before_pass: Sequence[Noted]) -> None:
    """Set the gradients to those of one process whose pass fails where the pass of `rank` has failed. A collective.

    Leaves that `rank` had reached get the average over the ranks. All others get their gradient from before the pass.

    Parameters
    ----------
    rank : int
        The first rank that has failed.
    before_pass : sequence of Noted
        The leaves, in the same order on all ranks.
    """
    come_to = [has_come_to(one) for one in before_pass]
    is_first = batch_rank() == rank
    with torch.no_grad():
        for (leaf, before, _), reached in zip(before_pass, Exchange.objects(come_to)[rank], strict=True):
            if not reached and before is None:
                leaf.grad = None
                continue
            own = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.to_dense()
            if reached:
                leaf.grad = Exchange.total(own / num_batch_ranks())
            else:  # other ranks may have added to theirs: take the one of `rank`
                leaf.grad = Exchange.total(own if is_first else torch.zeros_like(own))

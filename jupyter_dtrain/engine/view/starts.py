"""Starts: the gradients that the cell gives to a backward pass to begin with, for the rank's part of what it begins at."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .placements import GlobalTensor, Shard, part_of


def start_at(
    root: torch.Tensor, start: torch.Tensor, whole: Callable[[torch.Tensor], torch.Tensor], *, batched: bool = False
) -> torch.Tensor:
    """Return the gradient to begin with at the rank's part of `root`.

    A start may span the ranks in another way than the root does, ``mean.backward(other_mean)``: parts of a sum, or rows along
    another dim, are no start for what the rank has.

    Parameters
    ----------
    whole : callable
        Returns a tensor that spans the ranks as a whole, with its graph.
    batched : bool
        There are several starts, along a dim before all others.
    """
    placement = root.placement if isinstance(root, GlobalTensor) else None
    if isinstance(start, GlobalTensor):
        if isinstance(placement, Shard) and start.placement == placement and not batched:
            return part_of(start)
        start = whole(start)
    if isinstance(placement, Shard):
        return start[(*(slice(None),) * (placement.dim + batched), placement.loaded)]
    return start

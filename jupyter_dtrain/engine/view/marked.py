"""Tensors of a batch that a model lets require gradients: ``x.requires_grad_()`` in its ``forward``, to differentiate by its input.

Inside, that is done to the rank's part, a tensor of its own. The cell may go on to take gradients by the batch, so the batch is to
require them as well, from before the model is entered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .global_view import NotPerSample
from .placements import GlobalTensor


class MarkedNow(NotPerSample):
    """A model's call has let tensors require gradients that are to do so before it is entered.

    Parameters
    ----------
    indices : list of int
        As :func:`mark` takes them.
    """

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices


def marked(given: Any, own: Any) -> list[int]:
    """Return which of the tensors that a model was given it has let require gradients, in the rank's `own` parts of them."""
    pairs = zip(pytree.tree_leaves(given), pytree.tree_leaves(own), strict=True)
    return [
        index
        for index, (whole, part) in enumerate(pairs)
        if isinstance(whole, GlobalTensor) and isinstance(part, torch.Tensor) and part.requires_grad and not whole.requires_grad
    ]


def mark(given: Any, indices: Sequence[int]) -> None:
    """Let tensors that a model is given require gradients."""
    leaves = pytree.tree_leaves(given)
    for index in indices:
        if index < len(leaves) and isinstance(leaf := leaves[index], GlobalTensor) and leaf.is_floating_point():
            leaf.requires_grad_()

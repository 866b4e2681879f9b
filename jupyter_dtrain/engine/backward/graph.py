"""Walk the autograd graph of a backward pass: find its leaf tensors, and nodes with sparse gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from ..tensor.graph_placement import graph_nodes
from ..tensor.placement_types import GlobalTensor, is_of_share


def leaves_of(roots: Sequence[torch.Tensor], *, of: Callable[[Any], torch.Tensor | None] | None = None) -> list[torch.Tensor]:
    """Return the leaf tensors that require gradients in the graph of `roots`, in the order in which the graph is walked.

    Parameters
    ----------
    roots : sequence of Tensor
    of : callable, optional
        Returns the leaf of an AccumulateGrad node, ``None`` to skip it. By default, leaves are skipped that belong to this rank alone.
    """
    leaf_of = of or _leaf_of
    leaves = {id(root): root for root in roots if root.grad_fn is None and root.requires_grad}
    for node in graph_nodes(roots):
        if not node.next_functions:  # of nodes without successors only AccumulateGrad has a `variable`
            variable = leaf_of(node)
            if variable is not None:
                leaves[id(variable)] = variable
    return list(leaves.values())


def has_sparse(roots: Sequence[torch.Tensor]) -> bool:
    """Return whether the graph of `roots` has an embedding look-up with ``sparse=True``."""
    return any(getattr(node, "_saved_sparse", False) for node in graph_nodes(roots))


def _leaf_of(node: Any) -> torch.Tensor | None:
    """Return the leaf of an AccumulateGrad node, ``None`` if its gradient must not be reduced over ranks.

    Not reduced are leaves of this rank alone: a batch that requires gradients, and tensors that a model has made for the samples of its
    shard (coordinates to differentiate by), which it has returned, or to which only the graph still refers.
    """
    leaf = getattr(node, "variable", None)
    if leaf is None or isinstance(leaf, nn.Parameter):
        return leaf
    if isinstance(leaf, GlobalTensor) or is_of_share(leaf):
        return None
    return leaf if sys.getrefcount(leaf) > _held_by_nobody() else None


@cache
def _held_by_nobody() -> int:
    """Return the reference count that `_leaf_of` sees for a leaf to which only the graph refers."""
    node = (torch.ones(1, requires_grad=True, device="cpu") * 1.0).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    leaf = node.variable  # type: ignore[union-attr]
    return sys.getrefcount(leaf)


def any_leaf_of(node: Any) -> torch.Tensor | None:
    """Return the leaf of an AccumulateGrad node, ``None`` for other nodes."""
    leaf: torch.Tensor | None = getattr(node, "variable", None)
    return leaf

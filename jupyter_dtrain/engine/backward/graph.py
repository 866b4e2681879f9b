"""The graph that a backward pass goes through: the leaves at its ends, and what is on the way."""

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
    of : callable, optional
        Returns the leaf that a node at the end of the graph adds to, ``None`` if it is not asked for. By default: if ranks share it.
    """
    leaf_of = of or _leaf_of
    leaves = {id(root): root for root in roots if root.grad_fn is None and root.requires_grad}
    for node in graph_nodes(roots):
        if not node.next_functions:  # only a node that adds to a leaf has none and a variable
            variable = leaf_of(node)
            if variable is not None:
                leaves[id(variable)] = variable
    return list(leaves.values())


def has_sparse(roots: Sequence[torch.Tensor]) -> bool:
    """Return whether a table is looked up in the graph of `roots` in such a way that its gradient is sparse."""
    return any(getattr(node, "_saved_sparse", False) for node in graph_nodes(roots))


def _leaf_of(node: Any) -> torch.Tensor | None:
    """Return the leaf that a node of a graph adds to; ``None``: none whose gradient ranks share.

    A batch that requires gradients is the rank's own, and so is what a model has made for the samples of its share: coordinates to
    differentiate by, say, which it has returned, or of which nobody has hold any more.
    """
    leaf = getattr(node, "variable", None)
    if leaf is None or isinstance(leaf, nn.Parameter):
        return leaf
    if isinstance(leaf, GlobalTensor) or is_of_share(leaf):
        return None
    return leaf if sys.getrefcount(leaf) > _held_by_nobody() else None


@cache
def _held_by_nobody() -> int:
    """Return how many references `_leaf_of` counts of a leaf that is in a graph and nowhere else."""
    node = (torch.ones(1, requires_grad=True) * 1.0).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    leaf = node.variable  # type: ignore[union-attr]
    return sys.getrefcount(leaf)


def any_leaf_of(node: Any) -> torch.Tensor | None:
    """Return the leaf that a node of a graph adds to, whoever has it; ``None``: the node is no end of the graph."""
    leaf: torch.Tensor | None = getattr(node, "variable", None)
    return leaf

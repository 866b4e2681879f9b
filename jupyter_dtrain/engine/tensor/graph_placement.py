"""Where a global tensor stands in the autograd graph: what it was computed by, and where a pass over it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .placement_types import GlobalTensor, Shard, source_of, to_local


def in_graph(tensor: torch.Tensor) -> torch.Tensor | GradientEdge:
    """Return what a pass takes for the place of `tensor`, whose gradient it is to leave there: of other classes it knows nothing."""
    if not isinstance(tensor, GlobalTensor):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        source = source_of(tensor)
        if not isinstance(source, GlobalTensor):
            return source
        if not source.is_leaf:
            source.retain_grad()
        return get_gradient_edge(source)


def computed_by(node: torch.autograd.graph.Node) -> str:
    """Return the name of what a tensor was computed by, and not that of a place it was given among the ranks."""
    while type(node).__name__ == "AliasBackward0" and (before := node.next_functions[0][0]) is not None:
        node = before
    return type(node).__name__


def graph_nodes(roots: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield the nodes of the graph of `roots`, each once."""
    pending: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


def start_at(
    root: torch.Tensor, start: torch.Tensor, whole: Callable[[torch.Tensor], torch.Tensor], *, batched: bool = False
) -> torch.Tensor:
    """Return the gradient to begin with at the rank's part of `root`.

    A start may span the ranks in another way than the root does, ``mean.backward(other_mean)``: parts of a sum, or rows along
    another dim, are no start for what the rank has.

    Parameters
    ----------
    root : Tensor
        Of the global shape ``(B, …)`` to the cell, ``(b, …)`` on the rank.
    start : Tensor
        Of the root's global shape; if `batched`, with one dim before it.
    whole : callable
        Returns a tensor that spans the ranks as a whole, with its graph.
    batched : bool
        There are several starts, along a dim before all others.
    """
    placement = root.placement if isinstance(root, GlobalTensor) else None
    if isinstance(start, GlobalTensor):
        if isinstance(placement, Shard) and start.placement == placement and not batched:
            return to_local(start)
        start = whole(start)
    if isinstance(placement, Shard):
        return start[(*(slice(None),) * (placement.dim + batched), placement.loaded)]
    return start

"""Find a global tensor's place in the autograd graph: its node, the operation that made it, the gradient that a pass starts with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .placement_types import GlobalTensor, Shard, source_of, to_local


def in_graph(tensor: torch.Tensor) -> torch.Tensor | GradientEdge:
    """Return `tensor` as an element of ``inputs=`` of a backward pass: a plain tensor, or for a global one the edge of its node.

    A non-leaf global tensor retains its gradient from then on, as the pass is to leave it in ``.grad``.
    """
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
    """Return the name of the operation that made a tensor, skipping the alias nodes that :func:`from_local` adds."""
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
    """Return the rank's part of the gradient `start` of `root`.

    `start` may have another placement than `root`, as in ``mean.backward(other_mean)``. It is then made full first.

    Parameters
    ----------
    root : Tensor
        ``(B, …)`` for the cell, ``(b, …)`` on the rank.
    start : Tensor
        Of the root's global shape; if `batched`, with one dim before it.
    whole : callable
        Returns the full tensor of a global one, with its graph. A collective.
    batched : bool
        Whether `start` stacks several gradients along dim 0.

    Returns
    -------
    Tensor
        ``(b, …)`` of a shard, otherwise of the root's shape; if `batched`, with the dim before it.
    """
    placement = root.placement if isinstance(root, GlobalTensor) else None
    if isinstance(start, GlobalTensor):
        if isinstance(placement, Shard) and start.placement == placement and not batched:
            return to_local(start)
        start = whole(start)
    if isinstance(placement, Shard):
        return start[(*(slice(None),) * (placement.dim + batched), placement.loaded)]
    return start

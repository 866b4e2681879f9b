"""Backward passes with ``create_graph=True``, whose gradients the cell differentiates again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..tensor.hooks_aside import hooks_set_aside
from ..tensor.placement_types import Partial, from_local
from ..tensor.redistribute import Exchange
from .backward_pass import BackwardPass
from .graph import any_leaf_of, leaves_of

_grad = torch.autograd.grad


def run_with_graph(
    one: BackwardPass, shared: Sequence[torch.Tensor], whole: Callable[[torch.Tensor], torch.Tensor], *, world_size: int
) -> None:
    """Run a pass with ``create_graph=True``. A collective.

    A reducer's results have no graph. The gradients are therefore computed by ``torch.autograd.grad`` and averaged by differentiable
    collectives. A second backward pass accumulates them into the leaves, so that hooks see them.

    Parameters
    ----------
    one : BackwardPass
    shared : sequence of Tensor
        The leaves whose gradients are reduced, in the same order on all ranks.
    whole : callable
        Returns the full tensor of a global one, with its graph.
    world_size : int
    """
    kept = None if one.inputs is None else {id(tensor) for tensor in one.inputs}
    there = {id(leaf) for leaf in shared}
    own = [leaf for leaf in leaves_of(one.roots, of=any_leaf_of) if id(leaf) not in there and (kept is None or id(leaf) in kept)]
    with hooks_set_aside(shared), torch._C.DisableTorchFunctionSubclass():  # `own` may have a batch of the cell
        found: list[torch.Tensor | None] = [*_grad(one.roots, [*shared, *own], one.gradients, create_graph=True, allow_unused=True)]
    parts = list(zip(shared, found[: len(shared)], strict=True))
    reached = Exchange.total(torch.tensor([gradient is not None for _, gradient in parts], device="cpu")).tolist()
    there_are = [pair for pair, by_any in zip(parts, reached, strict=True) if by_any]
    averaged = [torch.zeros_like(leaf) if gradient is None else gradient / world_size for leaf, gradient in there_are]
    sums = [whole(from_local(part, Partial())) for part in averaged]
    with torch.enable_grad():
        ends = [leaf.view_as(leaf) for leaf, _ in there_are]
    one.original(ends, sums, create_graph=True)
    with torch._C.DisableTorchFunctionSubclass():
        for leaf, gradient in zip(own, found[len(shared) :], strict=True):
            if gradient is not None:
                leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient

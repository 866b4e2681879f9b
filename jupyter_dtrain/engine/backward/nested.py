"""Backward passes within a backward pass: how PyTorch's reentrant activation checkpointing computes a part of the gradients.

The reducer of the outer pass cannot be told of them: it counts the leaves of the graph that it was given, each once. So an inner pass
adds nothing to parameters. What it finds for them is kept, averaged over the ranks when the outer pass is over, and added then.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.autograd import grad as _grad

from ..ranks.collectives import all_reduce
from .leaf_hooks import hooks_set_aside

Gradients = list[tuple[torch.Tensor, torch.Tensor]]


class NestedPasses:
    """The backward passes within one.

    Parameters
    ----------
    leaves : sequence of Tensor
        Those that the outer pass's reducer knows of.
    """

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        self._leaves = leaves
        self._found: list[Gradients] = []
        self._others: list[tuple[weakref.ref[torch.Tensor], torch.Tensor | None, torch.Tensor]] = []  # with what they had before

    def run(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], leaves: list[torch.Tensor], **options: Any
    ) -> None:
        """Run a pass from `roots` with `gradients` to `leaves`, of which those that belong to no model get theirs at once."""
        options.pop("inputs", None)
        with hooks_set_aside(leaves):
            found = _grad(roots, leaves, gradients, allow_unused=True, **options)
        known = {id(leaf) for leaf in self._leaves}
        kept: Gradients = []
        for leaf, gradient in zip(leaves, cast("tuple[torch.Tensor | None, ...]", found), strict=True):
            if gradient is None:
                continue
            if isinstance(leaf, nn.Parameter) or id(leaf) in known:
                kept.append((leaf, gradient))
            else:  # an input, made for the pass, which ends with it; or else a tensor that the cell trains
                self._others.append((weakref.ref(leaf), leaf.grad, gradient))
                leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
        self._found.append(kept)

    def finish(self, *, world_size: int) -> None:
        """Average over the ranks what was found for parameters, and add it. A collective."""
        others: Gradients = []
        for reference, before, gradient in reversed(self._others):
            if (leaf := reference()) is not None:
                leaf.grad = before
                others.insert(0, (leaf, gradient))
        for found in (*self._found, others):
            gradients = [(gradient / world_size).contiguous() for _, gradient in found]
            for gradient in gradients:
                all_reduce(gradient)
            for (leaf, _), gradient in zip(found, gradients, strict=True):
                _add(leaf, gradient)


def _add(leaf: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add to a leaf's gradient as a backward pass does, but past its node: the outer pass's reducer is told of what goes through that."""
    for hook in list((leaf._backward_hooks or {}).values()):
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    with torch.no_grad():
        if leaf.grad is None:
            leaf.grad = gradient
        else:
            leaf.grad += gradient
    for hook in list((leaf._post_accumulate_grad_hooks or {}).values()):
        hook(leaf)

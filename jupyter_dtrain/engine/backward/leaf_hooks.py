"""Hooks of leaf tensors, run after the reduction of a backward pass, and passes within one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import nn
from torch.autograd import grad as _grad

from ..comm.collectives import all_reduce
from ..tensor.hooks_aside import hooks_set_aside, reached_instead, roots_above


def hooks_after_reduction(
    leaves: Sequence[torch.Tensor], backward: Callable[..., None], *, create_graph: bool
) -> AbstractContextManager[None]:
    """Run hooks of leaves after the reduction: they are to see the gradient of the global batch, not the rank's part of it.

    A backward pass of their own, from the leaves' gradients, calls them as PyTorch does: each kind at its moment, those of several leaves
    together, and in the order in which the leaves were reached.
    """
    hooked = [leaf for leaf in leaves if leaf._backward_hooks or leaf._post_accumulate_grad_hooks]
    return _after_reduction(hooked, backward, create_graph=create_graph) if hooked else nullcontext()


@contextmanager
def _after_reduction(leaves: Sequence[torch.Tensor], backward: Callable[..., None], *, create_graph: bool) -> Iterator[None]:
    before = [(leaf.grad, None if leaf.grad is None else leaf.grad.clone()) for leaf in leaves]
    with reached_instead(leaves) as reached:
        for leaf in leaves:
            leaf.grad = None
        try:
            yield
        finally:
            found = {id(leaf): leaf.grad for leaf in leaves}
            for leaf, (gradient, numbers) in zip(leaves, before, strict=True):
                found[id(leaf)] = _given_back(gradient, numbers, found[id(leaf)])
                leaf.grad = gradient  # that very tensor, to which the pass adds: the cell may have it under another name
    there = {id(leaf) for leaf in reached}
    in_turn = [leaf for leaf in leaves[::-1] if id(leaf) not in there and found[id(leaf)] is not None]  # another rank has reached them
    in_turn += [leaf for leaf in reached if found[id(leaf)] is not None]
    if in_turn:
        backward(roots_above(in_turn), [found[id(leaf)] for leaf in in_turn], create_graph=create_graph)


def _given_back(gradient: torch.Tensor | None, numbers: torch.Tensor | None, found: torch.Tensor | None) -> torch.Tensor | None:
    """Give a gradient its `numbers` back, which may lie where the reducer writes, and return what was `found`, which lies elsewhere."""
    if gradient is None or numbers is None or gradient.requires_grad or gradient.layout != torch.strided:
        return found  # with a graph, or sparse, it is none that a reducer writes
    if found is not None and found.layout == torch.strided and found.untyped_storage().data_ptr() == gradient.untyped_storage().data_ptr():
        found = found.clone()
    with torch.no_grad():
        gradient.copy_(numbers)
    return found


# Backward passes within a backward pass: how PyTorch's reentrant activation checkpointing computes a part of the gradients.
#
# The reducer of the outer pass cannot be told of them: it counts the leaves of the graph that it was given, each once. So an inner pass
# adds nothing to parameters. What it finds for them is kept, averaged over the ranks when the outer pass is over, and added then.

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
        """Run a pass from `roots` to `leaves`, of which those that belong to no model get their gradients at once.

        Parameters
        ----------
        roots : sequence of Tensor
            The rank's parts, ``(b, …)`` each.
        gradients : sequence of Tensor or None
            To begin with, of the roots' shapes.
        leaves : list of Tensor
        **options
            Of ``torch.autograd.grad``.
        """
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

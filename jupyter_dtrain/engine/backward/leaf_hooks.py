"""Run hooks of leaf tensors after the reduction of a backward pass, and backward passes nested in another one."""

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
    """Return a context that runs hooks of `leaves` at its end: they must see the gradient of the global batch, not the rank's part.

    A separate backward pass from the reduced gradients calls the hooks as PyTorch does: each kind at its moment, in the order in which the
    leaves were reached.
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
                leaf.grad = gradient  # the same object, to which the second pass adds: the cell may refer to it
    there = {id(leaf) for leaf in reached}
    in_turn = [leaf for leaf in leaves[::-1] if id(leaf) not in there and found[id(leaf)] is not None]  # only other ranks have reached them
    in_turn += [leaf for leaf in reached if found[id(leaf)] is not None]
    if in_turn:
        backward(roots_above(in_turn), [found[id(leaf)] for leaf in in_turn], create_graph=create_graph)


def _given_back(gradient: torch.Tensor | None, numbers: torch.Tensor | None, found: torch.Tensor | None) -> torch.Tensor | None:
    """Restore the values of `gradient`, whose memory the reducer may have overwritten, and return `found`, copied if it is that memory.

    Parameters
    ----------
    gradient : Tensor, optional
        The leaf's gradient before the pass.
    numbers : Tensor, optional
        A copy of its values.
    found : Tensor, optional
        The leaf's gradient after the pass.
    """
    if gradient is None or numbers is None or gradient.requires_grad or gradient.layout != torch.strided:
        return found  # a reducer never writes into gradients that have a graph or are sparse
    if found is not None and found.layout == torch.strided and found.untyped_storage().data_ptr() == gradient.untyped_storage().data_ptr():
        found = found.clone()
    with torch.no_grad():
        gradient.copy_(numbers)
    return found


# Backward passes nested in another one: PyTorch's reentrant activation checkpointing computes a part of the gradients in this way.
#
# The outer pass's reducer does not know them: it expects each leaf of its graph exactly once. A nested pass therefore adds nothing to
# parameters. Its gradients for them are kept, and averaged over the ranks and added after the outer pass.

Gradients = list[tuple[torch.Tensor, torch.Tensor]]


class NestedPasses:
    """The backward passes nested in one outer pass.

    Parameters
    ----------
    leaves : sequence of Tensor
        The leaves that the outer pass's reducer reduces.
    """

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        self._leaves = leaves
        self._found: list[Gradients] = []
        self._others: list[tuple[weakref.ref[torch.Tensor], torch.Tensor | None, torch.Tensor]] = []  # leaf, gradient before, new one

    def run(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], leaves: list[torch.Tensor], **options: Any
    ) -> None:
        """Run a nested pass from `roots` to `leaves`.

        Gradients of parameters and of the outer reducer's leaves are kept for :meth:`finish`. All other leaves get theirs at once.

        Parameters
        ----------
        roots : sequence of Tensor
            The rank's parts, ``(b, …)`` each.
        gradients : sequence of Tensor or None
            Initial gradients, in the roots' shapes.
        leaves : list of Tensor
        **options
            Options of ``torch.autograd.grad``.
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
            else:  # an input that checkpointing has made, and drops after the pass, or a tensor that the cell trains
                self._others.append((weakref.ref(leaf), leaf.grad, gradient))
                leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
        self._found.append(kept)

    def finish(self, *, world_size: int) -> None:
        """Average the gradients of the nested passes over the ranks and add them to the leaves. A collective.

        It includes the leaves that got their gradients at once, if they still exist: tensors that the cell trains.
        """
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
    """Add `gradient` to a leaf's and call its hooks, bypassing its AccumulateGrad node, where the outer pass's reducer has a hook."""
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

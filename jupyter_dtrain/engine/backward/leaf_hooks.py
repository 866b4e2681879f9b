"""Hooks of leaf tensors: set aside while a backward pass runs that they are not to see, and run after the reduction of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

Hooks = dict[Any, Any]


def _hooks_of(leaf: torch.Tensor) -> list[Hooks]:
    """Return the hooks that are registered on a leaf, each kind in the dict that PyTorch has for it."""
    return [hooks for hooks in (leaf._backward_hooks, leaf._post_accumulate_grad_hooks) if hooks]


@contextmanager
def hooks_set_aside(leaves: Iterable[torch.Tensor]) -> Iterator[None]:
    """Let no hooks of `leaves` be called until the end of the ``with`` block."""
    registered = [(hooks, dict(hooks)) for leaf in leaves for hooks in _hooks_of(leaf)]
    for hooks, _ in registered:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in registered:
            hooks.clear()
            hooks.update(before)


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
    hooked = [(leaf, _hooks_of(leaf)[0]) for leaf in leaves]
    reached: list[torch.Tensor] = []
    before = [None if leaf.grad is None else leaf.grad.clone() for leaf, _ in hooked]  # it may lie where the reducer writes
    with hooks_set_aside(leaf for leaf, _ in hooked):
        for leaf, hooks in hooked:
            hooks[0] = partial(_note, reached, leaf)
            leaf.grad = None
        try:
            yield
        finally:
            found = {id(leaf): leaf.grad for leaf, _ in hooked}
            for (leaf, _), gradient in zip(hooked, before, strict=True):
                leaf.grad = gradient
    in_turn = [leaf for leaf in reversed(reached) if found[id(leaf)] is not None]  # what is made last is gone through first
    if in_turn:
        with torch.enable_grad():
            ends = [_Same.apply(leaf) for leaf in in_turn]  # type: ignore[no-untyped-call]
        backward(ends, [found[id(leaf)] for leaf in in_turn], create_graph=create_graph)


def _note(reached: list[torch.Tensor], leaf: torch.Tensor, _: torch.Tensor) -> None:
    reached.append(leaf)


class _Same(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.view_as(leaf)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient

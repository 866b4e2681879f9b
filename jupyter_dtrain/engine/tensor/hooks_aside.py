"""Remove the hooks of leaf tensors during a backward pass that they must not see, and call them later in a pass of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

Hooks = dict[Any, Any]


def hooks_of(leaf: torch.Tensor) -> list[Hooks]:
    """Return PyTorch's dicts of hooks of `leaf` (backward hooks, post-accumulate-grad hooks) that are not empty."""
    return [hooks for hooks in (leaf._backward_hooks, leaf._post_accumulate_grad_hooks) if hooks]


@contextmanager
def hooks_set_aside(leaves: Iterable[torch.Tensor]) -> Iterator[None]:
    """Remove the hooks of `leaves`; register them again at the end of the ``with`` block."""
    registered = [(hooks, dict(hooks)) for leaf in leaves for hooks in hooks_of(leaf)]
    for hooks, _ in registered:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in registered:
            hooks.clear()
            hooks.update(before)


@contextmanager
def reached_instead(leaves: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Record, in order, which of `leaves` a backward pass reaches, instead of calling their hooks. Each leaf must have hooks."""
    reached: list[torch.Tensor] = []
    kept = [(leaf, hooks_of(leaf)[0]) for leaf in leaves]
    with hooks_set_aside(leaves):
        for leaf, hooks in kept:
            hooks[0] = partial(_note, reached, leaf)
        yield reached


def roots_above(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return one root per leaf: a backward pass from them only calls the hooks of `leaves`, in their order."""
    with torch.enable_grad():
        # Autograd runs the node made last first.
        return [_Same.apply(leaf) for leaf in reversed(leaves)][::-1]  # type: ignore[no-untyped-call]


def _note(reached: list[torch.Tensor], leaf: torch.Tensor, _: torch.Tensor) -> None:
    reached.append(leaf)


class _Same(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.view_as(leaf)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient

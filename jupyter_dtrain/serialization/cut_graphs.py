"""An autograd graph stays in its process: what a tensor has in its place, where the tensor is sent or a cell's writes come home.

A backward pass that reaches the cut raises an error instead of stopping silently, or using the graph that an older value had.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any

import torch


def is_leaf(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` is a leaf tensor."""
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view (of `split`, `unbind`) of a tensor that was modified in place: it has values, but no valid graph
        return False


def grad_fn_of(tensor: torch.Tensor) -> Any:
    """Return the ``grad_fn`` of `tensor`, ``None`` if it has none or is a view without a valid one."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def grad_fn_name(tensor: torch.Tensor) -> str:
    """Return the name of the ``grad_fn`` of `tensor`."""
    try:
        return type(tensor.grad_fn).__name__
    except RuntimeError:
        return "Invalid"  # as `repr` shows it


class _GraphElsewhere(torch.autograd.Function):
    """Autograd node in the place of a graph that stayed in another process."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)  # the tensor itself is returned: a view could not be detached in place, as `zero_grad` does
        return tensor

    @staticmethod
    def backward(_ctx: Any, *_: torch.Tensor) -> None:
        raise RuntimeError(
            "This tensor's autograd graph is not available here: %%distribute sends only its value. "
            "Compute it and call backward() in the same cell."
        )


@cache
def _named(backward: str) -> Any:
    """Return the autograd function under the name of the original ``grad_fn``, which `repr` shows."""
    made: Any = type(_GraphElsewhere.__name__, (_GraphElsewhere,), {})
    made._backward_cls.__name__ = backward
    return made


def without_graph(tensor: torch.Tensor, retained: torch.Tensor | None, backward: str) -> torch.Tensor:
    """Return a detached tensor as a non-leaf whose ``grad_fn`` has this name; a backward pass through it raises an error."""
    result = _behind(backward, tensor)
    if retained is not None:
        result.retain_grad()
        result.grad = retained
    return result


def _behind(backward: str, tensor: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return _named(backward).apply(tensor, torch.empty(0, requires_grad=True, device="cpu"))  # type: ignore[no-any-return]


def restore_graph(tensor: torch.Tensor, backward: str | None) -> None:
    """Make `tensor` a non-leaf whose graph of this name is elsewhere, or with ``None`` a leaf, as a cell's own writes have made it."""
    with contextlib.suppress(RuntimeError):  # a view that cannot be detached, an inference tensor
        if backward is None:
            tensor.detach_()
            return
        if is_leaf(tensor):
            tensor.requires_grad_(False)
        _behind(backward, tensor)

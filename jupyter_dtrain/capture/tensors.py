"""A tensor goes with its gradient and its hooks, which its own way of pickling forgets, and without the graph that made it.

A graph stays in its process: a backward pass that comes to where it was cut off says so, and does not end there unnoticed.
"""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from .unwarned import unwarned


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return an array of the numbers of `tensor`, in the same memory, which lives as long as nobody resizes the tensor.

    ``tensor.numpy()`` is as quick, but PyTorch then refuses to resize any tensor in that memory, for ever: as the cell may, or an observer.
    """
    return np.from_dlpack(tensor)


def is_leaf(tensor: torch.Tensor) -> bool:
    """Return whether a graph begins at `tensor`."""
    try:
        return tensor.is_leaf
    except RuntimeError:  # a part (of `split`, `unbind`) of what an optimizer has changed since: its values are there, its graph is not
        return False


def _computed_by(tensor: torch.Tensor) -> str:
    try:
        return type(tensor.grad_fn).__name__
    except RuntimeError:
        return "Invalid"  # as it is printed


def reduced_tensor(tensor: torch.Tensor) -> Any:
    """Return how a tensor reduces, ``NotImplemented`` where torch's own way leaves out nothing."""
    if is_lazy(tensor):
        return type(tensor), (tensor.requires_grad, tensor.data.device, tensor.data.dtype)
    if not is_leaf(tensor):
        return without_graph, (tensor.detach(), tensor.grad if tensor.retains_grad else None, _computed_by(tensor))
    hooks, after = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    if tensor.grad is None and not hooks and not after:
        return NotImplemented
    with unwarned():  # of the hooks
        reduced = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if len(reduced) != 2:
        return NotImplemented
    return (*reduced, (tensor.grad, list((hooks or {}).values()), list((after or {}).values())), None, None, _set_gradient)


def _set_gradient(tensor: torch.Tensor, state: tuple[torch.Tensor | None, list[Any], list[Any]]) -> None:
    gradient, hooks, after = state
    if gradient is not None:
        tensor.grad = gradient
    for hook in hooks:
        tensor.register_hook(hook)
    for hook in after:
        tensor.register_post_accumulate_grad_hook(hook)


class _GraphElsewhere(torch.autograd.Function):
    """In the place of a graph that stayed in another process."""

    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(_ctx: Any, *_: torch.Tensor) -> None:
        raise RuntimeError(
            "This tensor was computed in another cell, and what it was computed from is not here: %%distribute sends its value. "
            "Compute it and call backward() in the same cell."
        )


@cache
def _named(backward: str) -> Any:
    """Return it under the name of what a tensor was computed by there, which is shown with the tensor."""
    made: Any = type(_GraphElsewhere.__name__, (_GraphElsewhere,), {})
    made._backward_cls.__name__ = backward
    return made


def without_graph(tensor: torch.Tensor, retained: torch.Tensor | None, backward: str) -> torch.Tensor:
    """Return a detached tensor as one that was computed, by what has this name, with its gradient: a backward pass fails there."""
    with torch.enable_grad():
        result: torch.Tensor = _named(backward).apply(tensor.requires_grad_())
    if retained is not None:
        result.retain_grad()
        result.grad = retained
    return result

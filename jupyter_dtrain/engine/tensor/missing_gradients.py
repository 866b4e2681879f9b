"""Gradients that a rank, or all of them, may lack where they are exchanged: a function of the user's on the way there has none."""

from __future__ import annotations

from collections.abc import Callable

import torch

Like = tuple[torch.Size, torch.dtype, torch.device]
"""Shape, type and device of a gradient."""


def exchanged_gradient(grad: torch.Tensor | None, like: Like, exchange: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
    """Return what `exchange` makes of the ranks' gradients, ``None`` where no rank has any. Collective, as `exchange` is.

    A rank that has none takes part with zeros, shaped `like` (see :func:`like_of`): a function of the user's may have one on another rank.
    """
    if grad is not None:
        return exchange(grad)
    shape, dtype, device = like
    found = exchange(torch.zeros(shape, dtype=dtype, device=device))
    return found if found.any() else None


def like_of(tensor: torch.Tensor) -> Like:
    """Return what a gradient of `tensor` is like."""
    return tensor.shape, tensor.dtype, tensor.device

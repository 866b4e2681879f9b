"""Exchange gradients that some or all ranks lack, because a user-defined autograd function has returned ``None``."""

from __future__ import annotations

from collections.abc import Callable

import torch

Like = tuple[torch.Size, torch.dtype, torch.device]
"""Shape, type and device of a gradient."""


def exchanged_gradient(grad: torch.Tensor | None, like: Like, exchange: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
    """Return the ranks' gradients after `exchange`. A collective, as `exchange` is.

    A rank without a gradient takes part with zeros, because another rank may have one.

    Parameters
    ----------
    grad : Tensor, optional
        The rank's gradient.
    like : Like
        Shape, dtype and device of the zeros (see :func:`like_of`).
    exchange : callable
        From a rank's gradient to that of all ranks.

    Returns
    -------
    Tensor or None
        ``None`` if this rank has no gradient and the exchanged one is zero.
    """
    if grad is not None:
        return exchange(grad)
    shape, dtype, device = like
    found = exchange(torch.zeros(shape, dtype=dtype, device=device))
    return found if found.any() else None


def like_of(tensor: torch.Tensor) -> Like:
    """Return shape, dtype and device of a gradient of `tensor`."""
    return tensor.shape, tensor.dtype, tensor.device

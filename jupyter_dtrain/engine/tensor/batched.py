"""Exchanges in batched backward passes (``is_grads_batched=True``, `torch.func.vmap` around ``torch.autograd.grad``).

In such a pass an autograd function gets the gradients for all ``grad_outputs`` as one batched tensor, which has the shape of a single
gradient. Collectives have no batching rule. The ranks unwrap the tensor and exchange its content once for all ``grad_outputs``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

_functorch = torch._C._functorch


def of_batched(function: type[torch.autograd.Function], tensor: torch.Tensor) -> torch.Tensor:
    """Apply `function` to `tensor`, or to the tensor that a batched one wraps.

    Parameters
    ----------
    function : subclass of torch.autograd.Function
        Elementwise: it maps a tensor to one of the same shape.
    tensor : Tensor
        ``(…)``; in a batched pass with ``n`` ``grad_outputs`` it wraps ``(n, …)``.

    Raises
    ------
    RuntimeError
        A batched pass runs within another one.
    """
    if _functorch.is_batchedtensor(tensor):
        level, dim = _functorch.maybe_get_level(tensor), _functorch.maybe_get_bdim(tensor)
        inside = _functorch.get_unwrapped(tensor)
        with temporarily_clear_interpreter_stack():
            found = of_batched(function, inside)
        return _functorch._add_batch_dim(found, dim, level)
    if _functorch.is_legacy_batchedtensor(tensor):
        level = _legacy_level()
        inside = torch._remove_batch_dim(tensor, level, 0, 0)
        return torch._add_batch_dim(of_batched(function, inside), 0, level)
    if _functorch.maybe_current_level() is not None and not _functorch.is_functorch_wrapped_tensor(tensor):
        with temporarily_clear_interpreter_stack():  # the transform is not to see the exchange
            return of_batched(function, tensor)
    result: Any = function.apply(tensor)
    assert isinstance(result, torch.Tensor)
    return result


def is_batched(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` wraps the gradients of a batched backward pass."""
    return bool(_functorch.is_batchedtensor(tensor) or _functorch.is_legacy_batchedtensor(tensor))


def _legacy_level() -> int:
    """Return the vmap level of the running batched pass: 1, as PyTorch counts from 1 and only one may run."""
    above: int = torch._C._vmapmode_increment_nesting()
    torch._C._vmapmode_decrement_nesting()
    if above != 2:
        raise RuntimeError("a backward pass from many starts at once, within another one, cannot be exchanged between engines")
    return 1

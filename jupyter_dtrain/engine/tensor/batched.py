"""Backward passes from many starts at once (``is_grads_batched=True``, `torch.func.vmap` around ``torch.autograd.grad``).

PyTorch gives functions of Python's the gradients of all starts as one tensor that says it is of one start alone. An exchange has no rule
for these, and needs none: the ranks exchange what is in it, once for all starts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

_functorch = torch._C._functorch


def of_batched(function: type[torch.autograd.Function], tensor: torch.Tensor) -> torch.Tensor:
    """Apply `function`, which treats each entry of a tensor alike, to `tensor` or to what is in it.

    Parameters
    ----------
    function : subclass of torch.autograd.Function
        From a tensor to one of its shape.
    tensor : Tensor
        ``(…)``, where a pass goes on from ``n`` starts with ``(n, …)`` in it.
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
        with temporarily_clear_interpreter_stack():  # an exchange is not what is transformed
            return of_batched(function, tensor)
    result: Any = function.apply(tensor)
    assert isinstance(result, torch.Tensor)
    return result


def is_batched(tensor: torch.Tensor) -> bool:
    """Return whether a pass from many starts at once has given a function the gradients of all of them."""
    return bool(_functorch.is_batchedtensor(tensor) or _functorch.is_legacy_batchedtensor(tensor))


def _legacy_level() -> int:
    """Return the level of the batched pass that is under way; there is one, and PyTorch counts them from 1."""
    above: int = torch._C._vmapmode_increment_nesting()
    torch._C._vmapmode_decrement_nesting()
    if above != 2:
        raise RuntimeError("a backward pass from many starts at once, within another one, cannot be exchanged between engines")
    return 1

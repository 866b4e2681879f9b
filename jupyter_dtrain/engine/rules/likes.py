"""Tensors made after another, and what is read off a part or set there."""

from __future__ import annotations

from typing import Any

import torch

from ..placements import GlobalTensor, Shard, part_of, place
from .dispatch import NeedsWhole, Rules, at, blank_like, changes_in_place, global_shape, globals_in, the_shard


def constant_like(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``zeros_like`` and its kin: cut as a shard is; after what is the same number everywhere, a whole tensor."""
    (tensor, *rest), options = args, dict(kwargs)
    wants_gradient = bool(options.pop("requires_grad", False))
    if not isinstance(tensor, GlobalTensor) or globals_in(rest):
        raise NeedsWhole
    with torch._C.DisableTorchFunctionSubclass():
        result = func(part_of(tensor).detach(), *rest, **options)
    result = place(result, tensor.placement) if isinstance(tensor.placement, Shard) else result
    return result.requires_grad_() if wants_gradient else result


def random_like(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Random tensors of a shard's shape: drawn whole from the cell's stream, the same on every rank, and cut."""
    tensor, placement = the_shard(args, kwargs)
    wants_gradient = kwargs.get("requires_grad", False)
    kwargs = {key: value for key, value in kwargs.items() if key != "requires_grad"}
    with torch._C.DisableTorchFunctionSubclass():
        whole = func(blank_like(tensor, placement.dim, placement.total), *args[1:], **kwargs)
        part = whole[at(placement.dim, placement.loaded)]
        if changes_in_place(func):
            tensor.copy_(part)
            return tensor
        result = place(part.contiguous(), placement)
        return result.requires_grad_() if wants_gradient else result


def bernoulli(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``bernoulli`` of a shard of probabilities: each entry takes one number of the stream, whatever its probability."""
    tensor, placement = the_shard(args, kwargs)
    if len(args) > 1 or kwargs:
        raise NeedsWhole
    with torch._C.DisableTorchFunctionSubclass():
        whole, rows = blank_like(tensor, placement.dim, placement.total).fill_(0.5), at(placement.dim, placement.loaded)
        whole[rows] = tensor
        return place(func(whole)[rows].contiguous(), placement)


def dropout(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dropout in the cell's own code: the mask is drawn whole, as one process would draw it, and cut."""
    tensor, placement = the_shard(args, kwargs)
    if kwargs.get("inplace"):
        raise NeedsWhole
    with torch._C.DisableTorchFunctionSubclass():
        ones = blank_like(tensor, placement.dim, placement.total).fill_(1.0)
        mask = func(ones, *args[1:], **kwargs)[at(placement.dim, placement.loaded)]
        return place(tensor * mask, placement)


def new_like(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``new_zeros`` and its kin lend type and device only: the result is whole."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(part_of(args[0]), *rules.whole(args[1:]), **kwargs)


def local_value(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what is the same for the part as for the whole: type, device, whether it requires gradients."""
    return rules.local(func, args, kwargs)


def deepcopy(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``copy.deepcopy``, as PyTorch has it: of what has a history it is an error."""
    tensor, memo = args
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch._C.DisableTorchFunctionSubclass():
        if not tensor.is_leaf:
            return func(part_of(tensor), memo)
        result = place(tensor.detach().clone(), tensor.placement).requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = result
    return result


def set_property(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.requires_grad = True``, ``x.grad = None``, ``x.data = …``: of the part."""
    tensor, value = args
    if not isinstance(tensor, GlobalTensor):
        return rules.on_wholes(func, args, kwargs)
    if isinstance(value, GlobalTensor):
        if value.placement != tensor.placement:
            raise NeedsWhole
    elif isinstance(value, torch.Tensor):
        if not isinstance(tensor.placement, Shard) or value.shape != global_shape(tensor):
            raise NeedsWhole
        value = value[at(tensor.placement.dim, tensor.placement.loaded)]
    return rules.local(func, (tensor, value), kwargs)

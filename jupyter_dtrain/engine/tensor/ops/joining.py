"""Rules of operations that join tensors (``cat``, ``stack``) or broadcast one to the shape of another."""

from __future__ import annotations

from typing import Any

import torch

from ..placement_types import GlobalTensor, Shard, from_local
from .dispatch import Rules
from .operands import NeedsFullTensor, at, dims_of, global_shape, globals_in, ndim_of, the_shard
from .views import expand, reshape


def broadcast(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``broadcast_tensors`` and ``broadcast_to``."""
    if func.__name__ == "broadcast_to":
        return expand(rules, torch.Tensor.expand, (args[0], *(args[1:] or (kwargs["size"],))), {})
    tensors = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    sizes = torch.broadcast_shapes(*(global_shape(t) if isinstance(t, GlobalTensor) else t.shape for t in tensors))
    return tuple(
        expand(rules, torch.Tensor.expand, (tensor, *sizes), {}) if isinstance(tensor, GlobalTensor) else tensor.expand(sizes)
        for tensor in tensors
    )


def as_other(rules: Rules, func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """``view_as``, ``reshape_as`` and ``expand_as``, which use only the shape of the other tensor."""
    if len(args) != 2:
        raise NeedsFullTensor
    tensor, other = args
    sizes = global_shape(other) if isinstance(other, GlobalTensor) else other.shape
    expands = func.__name__ == "expand_as"
    if not isinstance(tensor, GlobalTensor):
        return tensor.expand(sizes) if expands else tensor.view(sizes)
    return expand(rules, torch.Tensor.expand, (tensor, *sizes), {}) if expands else reshape(rules, torch.Tensor.view, (tensor, *sizes), {})


def part_along(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``select`` and ``narrow`` along a dim that is not sharded."""
    tensor, placement = the_shard(args, kwargs)
    dims = dims_of(args[:2], kwargs, ndim_of(tensor))
    if dims is None or placement.dim in dims:
        raise NeedsFullTensor
    lost = func.__name__ == "select" and dims[0] < placement.dim
    return from_local(rules.local(func, args, kwargs), Shard(placement.dim - lost, placement.share, placement.unit))


def join(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``cat`` and ``stack`` along a dim that is not sharded. Replicated tensors with one row per sample are sliced to match."""
    parts = args[0] if args else kwargs.get("tensors")
    if not isinstance(parts, list | tuple) or not all(isinstance(t, torch.Tensor) for t in parts):
        raise NeedsFullTensor
    shards = globals_in(parts)
    placement, ndim = shards[0].placement, ndim_of(shards[0])
    if not isinstance(placement, Shard) or any(t.placement != placement for t in shards) or any(ndim_of(t) != ndim for t in parts):
        raise NeedsFullTensor
    own = []
    for part in parts:
        if not isinstance(part, GlobalTensor):
            if part.shape[placement.dim] != placement.total:
                raise NeedsFullTensor
            part = part[at(placement.dim, placement.loaded)]
        own.append(part)
    stacked = func.__name__ == "stack"
    ndim += stacked
    dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else 0)) % ndim
    options = {key: value for key, value in kwargs.items() if key not in ("tensors", "dim", "axis")}
    if not stacked and dim == placement.dim:
        raise NeedsFullTensor
    result = rules.local(func, (own, dim), options)
    return from_local(result, Shard(placement.dim + (stacked and dim <= placement.dim), placement.share, placement.unit))


def columns(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``hstack`` and ``column_stack``."""
    if kwargs or not isinstance(args[0], list | tuple) or not all(isinstance(t, torch.Tensor) for t in args[0]):
        raise NeedsFullTensor
    parts = list(args[0])
    if func.__name__ == "column_stack":
        parts = [part.unsqueeze(1) if ndim_of(part) == 1 else part for part in parts]
    if any(ndim_of(part) < 2 for part in parts):
        raise NeedsFullTensor
    return join(rules, torch.cat, (parts, 1), {})

"""Inspect the operands of an operation as the cell passed them: global tensors among them, global shapes, ``dim`` arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ....serialization.item_restore import bytes_of
from ..placement_types import GlobalTensor, Shard


class NeedsFullTensor(Exception):
    """A rule does not cover these operands: the operation has to run on full tensors."""


def at(dim: int, part: slice) -> tuple[slice, ...]:
    """Return the index of `part` along `dim`: ``x[at(1, part)]`` is ``x[:, part]``."""
    return (*(slice(None),) * dim, part)


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors of equal shape and dtype have the same bytes, NaN included."""
    return torch.equal(bytes_of(left), bytes_of(right))


def changes_in_place(func: Any) -> bool:
    """Return whether `func` writes into its first operand."""
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE_DUNDERS


_IN_PLACE_DUNDERS = frozenset(
    f"__{name}__" for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "setitem")
)


def tensors_in(args: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors among `args` and in the lists among them."""
    found = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            found.append(arg)
        elif isinstance(arg, list | tuple):
            found += tensors_in(arg)
    return found


def ndim_of(tensor: torch.Tensor) -> int:
    """Return the number of dims."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.dim()


def requires_grad(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` requires gradients."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.requires_grad


def has_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether autograd records an operation on these operands in reverse mode."""
    return torch.is_grad_enabled() and any(map(requires_grad, tensors_in((*args, *kwargs.values()))))


def globals_in(args: Iterable[Any]) -> list[GlobalTensor]:
    """Return the global tensors among `args`."""
    return [t for t in tensors_in(args) if isinstance(t, GlobalTensor)]


def map_result(result: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Apply `function` to the tensors of a result, which may be a (named) tuple."""
    if isinstance(result, torch.Tensor):
        return function(result)
    if isinstance(result, tuple):
        mapped = [map_result(item, function) for item in result]
        return type(result)(mapped)
    return result


def the_shard(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[GlobalTensor, Shard]:
    """Return the first operand and its placement. NeedsFullTensor unless it is a shard and no other operand is a global tensor."""
    first = args[0] if args else None
    if not isinstance(first, GlobalTensor) or not isinstance(first.placement, Shard):
        raise NeedsFullTensor
    if globals_in(args[1:]) or globals_in(kwargs.values()):
        raise NeedsFullTensor
    return first, first.placement


def global_shape(tensor: GlobalTensor) -> torch.Size:
    """Return the shape that the cell sees: ``(B, …)`` of a shard ``(b, …)``."""
    with torch._C.DisableTorchFunctionSubclass():
        shape = list(tensor.shape)
    if isinstance(tensor.placement, Shard):
        shape[tensor.placement.dim] = tensor.placement.total
    return torch.Size(shape)


_MISSING = object()


def dims_of(args: tuple[Any, ...], kwargs: dict[str, Any], ndim: int, position: int = 1) -> tuple[int, ...] | None:
    """Return the dims that an operation works along, counted from 0; ``None``: all."""
    given = kwargs.get("dim", kwargs.get("axis", args[position] if len(args) > position else _MISSING))
    if given is _MISSING or given is None or (isinstance(given, list | tuple) and not given):
        return None
    if isinstance(given, bool) or not isinstance(given, int | list | tuple):
        raise NeedsFullTensor
    values = (given,) if isinstance(given, int) else tuple(given)
    if isinstance(given, int) and len(args) > position + 1 and all(type(arg) is int for arg in args[position:]):
        values = args[position:]  # flip(0, 2)
    return tuple(value % ndim if ndim else 0 for value in values)

"""Tensors made after another, what is read off a part, and gradients."""

from __future__ import annotations

from typing import Any

import torch

from ..exchange import weigh
from ..placements import GlobalTensor, Partial, Placement, Shard, part_of, place, source_of
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


def gradient(rules: Rules, func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """``.grad`` of a batch that requires gradients, or of what was computed from it: backward passes scale it, which is undone here."""
    tensor = args[0]
    source = source_of(tensor)
    with torch._C.DisableTorchFunctionSubclass():
        found = source.grad
        if found is None or isinstance(found, GlobalTensor):
            return found
        # The cell may go on with it in place, so it takes the place of the raw one.
        source.grad = gradient_of(rules, found, tensor.placement)
        return source.grad


def is_leaf(_rules: Rules, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """Return whether a graph begins with the tensor, which a model may have made and returned."""
    source = source_of(args[0])
    with torch._C.DisableTorchFunctionSubclass():
        return source.is_leaf


def gradient_of(rules: Rules, found: torch.Tensor, placement: Placement | None) -> GlobalTensor:
    """Return the gradient of a tensor, of which `found` is what the rank has.

    Parameters
    ----------
    placement : Placement, optional
        Of the tensor; ``None``: all ranks have it, each for its own part of what follows.
    """
    part = part_of(found) / rules.gradient_scale
    if isinstance(placement, Shard):
        return place(part, placement)
    if isinstance(placement, Partial) and placement.weight is None:
        return place(part, Partial(1.0 / rules.world_size))  # each rank has all of it
    return place(part, Partial())


def part_of_gradient(rules: Rules, gradient: torch.Tensor, placement: Placement | None) -> torch.Tensor:
    """Return what the rank has of the gradient of a tensor: the reverse of :func:`gradient_of`."""
    if isinstance(placement, Shard):
        if isinstance(gradient, GlobalTensor) and gradient.placement == placement:
            part = part_of(gradient)
        else:
            part = rules.whole(gradient)[at(placement.dim, placement.loaded)]
        return part * (rules.gradient_scale if placement.counts else 0.0)
    whole: torch.Tensor = rules.whole(gradient)
    if placement is None:
        return whole * (rules.gradient_scale / rules.world_size)
    return whole * (rules.gradient_scale * (1.0 if placement.weight is None else placement.weight))


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


def backward(_: Rules, _func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``loss.backward()``: the reducer (`gradients`) knows how to start from a part."""
    names = ("gradient", "retain_graph", "create_graph", "inputs")
    options = {**dict(zip(names, args[1:], strict=False)), **kwargs}
    torch.autograd.backward(
        args[0], options.get("gradient"), options.get("retain_graph"), options.get("create_graph", False), inputs=options.get("inputs")
    )


def grad(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``torch.autograd.grad``: gradients of shards are shards; what each rank adds to those of whole tensors is a part of a sum."""
    names = ("outputs", "inputs", "grad_outputs")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    outputs, inputs = _sequence(given.pop("outputs")), _sequence(given.pop("inputs"))
    starts = given.pop("grad_outputs", None)
    starts = [None] * len(outputs) if starts is None else _sequence(starts)
    with torch._C.DisableTorchFunctionSubclass():
        local_starts = [_start(rules, output, start) for output, start in zip(outputs, starts, strict=True)]
        before, rules.gradient_scale = rules.gradient_scale, 1.0
        try:
            found = func(outputs, [source_of(tensor) for tensor in inputs], local_starts, **given)
        finally:
            rules.gradient_scale = before
    return tuple(None if g is None else place(g, _placement(i)) for g, i in zip(found, inputs, strict=True))


def _placement(tensor: torch.Tensor) -> Placement:
    return tensor.placement if isinstance(tensor, GlobalTensor) else Partial()


def _sequence(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) or value is None else list(value)


def _start(rules: Rules, output: torch.Tensor, start: torch.Tensor | None) -> torch.Tensor | None:
    """Return the gradient to start from at a rank's part of `output`."""
    if not isinstance(output, GlobalTensor):
        # Computed on every rank: each starts with an equal part, so that the parts of the result add up.
        return (torch.ones_like(output) if start is None else start) / rules.world_size
    placement = output.placement
    if isinstance(placement, Partial):
        whole = torch.ones_like(output) if start is None else start
        return whole if placement.weight is None else weigh(whole, placement.weight)
    if start is None:
        start = torch.ones_like(output)
    elif not isinstance(start, GlobalTensor):
        start = start[at(placement.dim, placement.loaded)]
    return start if placement.counts else torch.zeros_like(start)

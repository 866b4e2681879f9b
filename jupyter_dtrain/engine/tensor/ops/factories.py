"""Tensors made after another, and what is read off a part or set there."""

from __future__ import annotations

from typing import Any

import torch

from ..function_bodies import BODIES
from ..memory_layout import blank_whole, compact, described
from ..placement_types import GlobalState, GlobalTensor, Origin, Shard, from_local, to_local
from ..versions import count_together
from .dispatch import Rules
from .kept_fulls import origin_of, root_of
from .operands import NeedsFullTensor, at, changes_in_place, global_shape, globals_in, ndim_of, requires_grad, the_shard
from .pointwise import keeps


def constant_like(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``zeros_like`` and its kin: cut as a shard is; after what is the same number everywhere, a whole tensor."""
    (tensor, *rest), options = args, dict(kwargs)
    wants_gradient = bool(options.pop("requires_grad", False))
    if not isinstance(tensor, GlobalTensor) or globals_in(rest):
        raise NeedsFullTensor
    with torch._C.DisableTorchFunctionSubclass():
        result = func(to_local(tensor).detach(), *rest, **options)
    result = from_local(result, tensor.placement) if isinstance(tensor.placement, Shard) else result
    return result.requires_grad_() if wants_gradient else result


def random_like(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Random tensors of a shard's shape: drawn whole from the cell's stream, the same on every rank, and cut."""
    tensor, placement = the_shard(args, kwargs)
    wants_gradient = kwargs.get("requires_grad", False)
    kwargs = {key: value for key, value in kwargs.items() if key != "requires_grad"}
    with torch._C.DisableTorchFunctionSubclass():
        in_place = changes_in_place(func)
        whole = func(blank_whole(tensor, placement, with_gaps=in_place), *args[1:], **kwargs)
        part = whole[at(placement.dim, placement.loaded)]
        if in_place:
            tensor.copy_(part)
            return tensor
        result = from_local(compact(part), placement)
        return result.requires_grad_() if wants_gradient else result


def drawn_by_entry(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Draws with a distribution for each entry (``bernoulli``, ``normal``) or row (``multinomial``).

    Each takes as many numbers of the stream whatever its distribution, so those of other ranks' entries need not be known.
    """
    operands = globals_in((*args, *kwargs.values()))
    placement, ndim = operands[0].placement, ndim_of(operands[0])
    plain = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and not isinstance(value, GlobalTensor)]
    if plain or not isinstance(placement, Shard) or any(t.placement != placement or ndim_of(t) != ndim for t in operands):
        raise NeedsFullTensor
    if func in _BY_ROW and ndim == 2 and placement.dim:  # samples of the batch are drawn
        whole = blank_whole(to_local(operands[0]), placement)
        return func(whole.copy_(rules.full_tensor(operands[0]).detach()), *args[1:], **kwargs)
    if func in _BY_ROW and ndim != 2:
        raise NeedsFullTensor
    rows = at(placement.dim, placement.loaded)

    def spread(value: Any) -> Any:
        if not isinstance(value, GlobalTensor):
            return value
        whole = blank_whole(to_local(value), placement).fill_(0.5)
        whole[rows] = to_local(value)
        return whole

    with torch._C.DisableTorchFunctionSubclass():
        drawn = func(*map(spread, args), **{key: spread(value) for key, value in kwargs.items()})
        return from_local(compact(drawn[rows]), placement)


_BY_ROW = frozenset((torch.multinomial, torch.Tensor.multinomial))


def in_python(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function that is written in Python, operation by operation."""
    return BODIES[func](*args, **kwargs)


def dropout(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dropout in the cell's own code: the mask is drawn whole, as one process would draw it, and cut."""
    tensor, placement = the_shard(args, kwargs)
    if kwargs.get("inplace"):
        raise NeedsFullTensor
    with torch._C.DisableTorchFunctionSubclass():
        ones = blank_whole(tensor, placement).fill_(1.0)
        mask = func(ones, *args[1:], **kwargs)[at(placement.dim, placement.loaded)]
        return from_local(tensor * mask, placement)


def new_like(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``new_zeros`` and its kin lend type and device only: the result is whole."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(to_local(args[0]), *rules.full_tensor(args[1:]), **kwargs)


def local_value(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what is the same for the part as for the whole: type, device, whether it requires gradients."""
    return rules.local(func, args, kwargs)


def layout(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what goes by strides: those that the whole would have."""
    placement = args[0].placement
    if not isinstance(placement, Shard):
        return rules.local(func, args, kwargs)
    return func(described(to_local(args[0]), placement.dim, placement.total), *args[1:], **kwargs)


def contiguous(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.contiguous()``: a copy where one process makes one. A part of one sample may be contiguous where the whole is not."""
    tensor, *rest = args
    wanted = {"memory_format": rest[0] if rest else kwargs.get("memory_format", torch.contiguous_format)}
    placement = tensor.placement
    if not isinstance(placement, Shard) or described(to_local(tensor), placement.dim, placement.total).is_contiguous(**wanted):
        return keeps(rules, func, args, kwargs)
    return keeps(rules, torch.Tensor.clone, (tensor,), wanted)


def deepcopy(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``copy.deepcopy``, as PyTorch has it: of what has a history it is an error."""
    tensor, memo = args
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch._C.DisableTorchFunctionSubclass():
        if not tensor.is_leaf:
            return func(to_local(tensor), memo)
        result = from_local(tensor.detach().clone(), tensor.placement).requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = result
    return result


_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def set_property(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.requires_grad = True``, ``x.grad = None``, ``x.data = …``: of the part."""
    tensor, value = args
    if not isinstance(tensor, GlobalTensor):
        return rules.on_wholes(func, args, kwargs)
    if isinstance(value, GlobalTensor) and value.placement != tensor.placement:
        value = rules.full_tensor(value)
    if isinstance(value, torch.Tensor) and not isinstance(value, GlobalTensor):
        if value.shape != global_shape(tensor):
            raise RuntimeError(
                f"The data or gradient of a tensor of shape {tuple(global_shape(tensor))}, which spans the ranks, was set to one of shape "
                f"{tuple(value.shape)}. Give the name another tensor instead: `x = …`, and not `x.data = …`."
            )
        if func == _SET_DATA and not requires_grad(tensor):
            rules.viewed = [other for other in rules.viewed if other is not root_of(tensor)]  # whose numbers are not of `tensor` any more
            _become_plain(tensor, value)
            return None
        value = rules.part_of(value, tensor.placement)
    result = rules.local(func, (tensor, value), kwargs)
    if func == _SET_DATA:
        tensor._state = GlobalState(tensor.placement, origin=_origin(value), source=tensor._state.source)
        count_together(value, tensor)
    return result


def _origin(value: torch.Tensor) -> Origin | None:
    return origin_of(value) if isinstance(value, GlobalTensor) and isinstance(value.placement, Shard) else None


def _become_plain(tensor: GlobalTensor, value: torch.Tensor) -> None:
    """Let `tensor` be a plain tensor with the memory of `value`, which all ranks have: what is written to one is in the other."""
    with torch._C.DisableTorchFunctionSubclass():
        tensor.data = value
        del tensor._state
        tensor.__class__ = torch.Tensor  # type: ignore[assignment]

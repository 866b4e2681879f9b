"""Rules of factories (``zeros_like``), random draws, dropout, and of attributes that are read from or set on a global tensor."""

from __future__ import annotations

from typing import Any

import torch

from ..function_bodies import BODIES
from ..memory_layout import blank_whole, compact, described, ones_in
from ..placement_types import GlobalState, GlobalTensor, Origin, Shard, from_local, to_local
from ..versions import count_together
from .autograd import set_gradient
from .dispatch import Rules
from .kept_fulls import origin_of, root_of
from .operands import NeedsFullTensor, at, changes_in_place, global_shape, globals_in, ndim_of, requires_grad, the_shard
from .pointwise import keeps


def constant_like(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``zeros_like`` and similar: from a shard a shard, from a partial value a replicated tensor."""
    (tensor, *rest), options = args, dict(kwargs)
    wants_gradient = bool(options.pop("requires_grad", False))
    if not isinstance(tensor, GlobalTensor) or globals_in(rest):
        raise NeedsFullTensor
    with torch._C.DisableTorchFunctionSubclass():
        result = func(to_local(tensor).detach(), *rest, **options)
    result = from_local(result, tensor.placement) if isinstance(tensor.placement, Shard) else result
    return result.requires_grad_() if wants_gradient else result


def random_like(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Random tensors like a shard: each rank draws the full tensor from the cell's random stream, equal on all ranks, and slices it."""
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
    """Draws with a distribution per entry (``bernoulli``, ``normal``) or per row (``multinomial``).

    The random numbers that an entry consumes do not depend on its distribution. The values of other ranks' entries are not needed.
    """
    operands = globals_in((*args, *kwargs.values()))
    placement, ndim = operands[0].placement, ndim_of(operands[0])
    plain = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and not isinstance(value, GlobalTensor)]
    if plain or not isinstance(placement, Shard) or any(t.placement != placement or ndim_of(t) != ndim for t in operands):
        raise NeedsFullTensor
    if func in _BY_ROW and ndim == 2 and placement.dim:  # draws samples of the batch
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
    """Run the body of a Python function of PyTorch (`function_bodies`), so that each operation in it is dispatched by itself."""
    return BODIES[func](*args, **kwargs)


def dropout(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dropout in the cell's own code: each rank draws the mask of the global batch, as one process does, and slices it."""
    tensor, placement = the_shard(args, kwargs)
    if kwargs.get("inplace"):
        raise NeedsFullTensor
    with torch._C.DisableTorchFunctionSubclass():
        ones = ones_in(blank_whole(tensor, placement, with_gaps=True))  # a GPU draws in another order where there are some
        mask = func(ones, *args[1:], **kwargs)[at(placement.dim, placement.loaded)]
        return from_local(tensor * mask, placement)


def new_like(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``new_zeros`` and similar, which use only dtype and device of the tensor: the result is replicated."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(to_local(args[0]), *rules.full_tensor(args[1:]), **kwargs)


def local_value(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a property that the part and the full tensor have in common: dtype, device, whether gradients are required."""
    return rules.local(func, args, kwargs)


def layout(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a property that depends on strides (``stride``, ``is_contiguous``), by the strides that the full tensor would have."""
    placement = args[0].placement
    if not isinstance(placement, Shard):
        return rules.local(func, args, kwargs)
    return func(described(to_local(args[0]), placement.dim, placement.total), *args[1:], **kwargs)


def contiguous(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.contiguous()``: copies if one process would copy. A shard of one sample may be contiguous where the full tensor is not."""
    tensor, *rest = args
    wanted = {"memory_format": rest[0] if rest else kwargs.get("memory_format", torch.contiguous_format)}
    placement = tensor.placement
    if not isinstance(placement, Shard) or described(to_local(tensor), placement.dim, placement.total).is_contiguous(**wanted):
        return keeps(rules, func, args, kwargs)
    return keeps(rules, torch.Tensor.clone, (tensor,), wanted)


def deepcopy(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``copy.deepcopy``, as in PyTorch: of a non-leaf tensor it is an error."""
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
_SET_GRAD = torch.Tensor.grad.__set__  # type: ignore[union-attr]


def set_property(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.requires_grad = True``, ``x.grad = None``, ``x.data = …``, set on the part."""
    tensor, value = args
    if isinstance(value, GlobalTensor) and value.placement != tensor.placement:
        value = rules.full_tensor(value)
    if isinstance(value, torch.Tensor) and not isinstance(value, GlobalTensor):
        if value.shape != global_shape(tensor):
            raise RuntimeError(
                f"The data or gradient of a tensor of shape {tuple(global_shape(tensor))}, which spans the ranks, was set to one of shape "
                f"{tuple(value.shape)}. Give the name another tensor instead: `x = …`, and not `x.data = …`."
            )
        if func == _SET_DATA and not requires_grad(tensor):
            rules.viewed = [other for other in rules.viewed if other is not root_of(tensor)]  # its values are no longer those of `tensor`
            _become_plain(tensor, value)
            return None
        value = rules.part_of(value, tensor.placement)
    if func == _SET_GRAD and isinstance(value, torch.Tensor) and isinstance(tensor.placement, Shard):
        return set_gradient(rules, tensor, tensor.placement, value)
    result = rules.local(func, (tensor, value), kwargs)
    if func == _SET_DATA:
        tensor._state = GlobalState(tensor.placement, origin=_origin(value), source=tensor._state.source)
        count_together(value, tensor)
    return result


def _origin(value: torch.Tensor) -> Origin | None:
    return origin_of(value) if isinstance(value, GlobalTensor) and isinstance(value.placement, Shard) else None


def _become_plain(tensor: GlobalTensor, value: torch.Tensor) -> None:
    """Turn `tensor` into a plain tensor that shares the storage of `value`, which is replicated."""
    with torch._C.DisableTorchFunctionSubclass():
        tensor.data = value
        del tensor._state
        tensor.__class__ = torch.Tensor  # type: ignore[assignment]

"""Rules of shapes and views: reshape, permute, expand, and their in-place variants."""

from __future__ import annotations

from typing import Any

import torch

from ..placement_types import GlobalState, GlobalTensor, Partial, Placement, Shard, from_local, to_local
from .dispatch import Rules
from .kept_fulls import root_of
from .operands import NeedsFullTensor, dims_of, global_shape, ndim_of, requires_grad, the_shard


def shape(_: Rules, _func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the global shape, or one size of it."""
    found = global_shape(args[0])
    dim = kwargs.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else None)
    return found if dim is None else found[dim]


def count(_: Rules, func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """``len`` and ``numel``."""
    found = global_shape(args[0])
    if func.__name__ == "__len__":
        if not found:
            raise TypeError("len() of a 0-d tensor")
        return found[0]
    return found.numel()


def reshape(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``reshape`` and ``view`` to a global shape whose first dim still has the samples, each with the same number of entries."""
    tensor, placement = the_shard(args[:1], {})
    given = kwargs.get("shape", kwargs.get("size", args[1:]))
    if len(given) == 1 and isinstance(given[0], list | tuple):
        given = given[0]
    if not given or not all(isinstance(size, int) for size in given):
        raise NeedsFullTensor  # view(dtype)
    whole = global_shape(tensor)
    if whole[: placement.dim].numel() != 1:
        raise NeedsFullTensor  # samples along another dim
    sizes = list(given)
    if -1 in sizes:
        known = 1
        for size in sizes:
            known *= size if size != -1 else 1
        if known == 0 or whole.numel() % known:
            raise NeedsFullTensor  # and PyTorch's own error
        sizes[sizes.index(-1)] = whole.numel() // known
    return _regrouped(tensor, placement, sizes, whole)


def _regrouped(tensor: GlobalTensor, placement: Shard, sizes: list[int], whole: torch.Size) -> Any:
    product_of_sizes = 1
    for size in sizes:
        product_of_sizes *= size
    total_entries = placement.share.total
    if product_of_sizes != whole.numel() or not sizes or sizes[0] == 0 or sizes[0] % total_entries:
        raise NeedsFullTensor
    unit = sizes[0] // total_entries
    loaded = placement.share.loaded
    part = (unit * (loaded.stop - loaded.start), *sizes[1:])
    with torch._C.DisableTorchFunctionSubclass():
        return from_local(tensor.reshape(part), Shard(0, placement.share, unit))


def flatten(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``flatten`` and ``ravel``, as a reshape of the global shape."""
    tensor, placement = the_shard(args, kwargs)
    ndim = ndim_of(tensor)
    start = kwargs.get("start_dim", args[1] if len(args) > 1 else 0) % max(ndim, 1)
    end = kwargs.get("end_dim", args[2] if len(args) > 2 else -1) % max(ndim, 1)
    if placement.dim != 0 or ndim == 0:
        raise NeedsFullTensor
    whole = global_shape(tensor)
    return _regrouped(tensor, placement, [*whole[:start], whole[start : end + 1].numel(), *whole[end + 1 :]], whole)


def squeeze(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``squeeze``, by the global shape: a shard with one sample must not lose its batch dim."""
    tensor, placement = the_shard(args, kwargs)
    whole = global_shape(tensor)
    dims = dims_of(args, kwargs, len(whole))
    wanted = [dim for dim in (range(len(whole)) if dims is None else dims) if whole[dim] == 1]
    if placement.dim in wanted:
        raise NeedsFullTensor
    with torch._C.DisableTorchFunctionSubclass():
        result = torch.squeeze(tensor, tuple(wanted))
    return from_local(result, Shard(placement.dim - sum(dim < placement.dim for dim in wanted), placement.share, placement.unit))


def unsqueeze(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``unsqueeze``."""
    tensor, placement = the_shard(args, kwargs)
    dims = dims_of(args, kwargs, ndim_of(tensor) + 1)
    assert dims is not None
    return from_local(rules.local(func, args, kwargs), Shard(placement.dim + (dims[0] <= placement.dim), placement.share, placement.unit))


_NAMES = ("squeeze", "unsqueeze", "t", "transpose", "swapaxes", "swapdims")
_ELSEWHERE = {getattr(torch.Tensor, f"{name}_"): getattr(torch.Tensor, name) for name in _NAMES}
IN_PLACE = tuple(_ELSEWHERE)


def reshape_in_place(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``unsqueeze_`` and similar: change shape and placement of the tensor itself."""
    tensor = args[0]
    root = root_of(tensor) if rules.is_read(tensor) else None
    if isinstance(tensor, GlobalTensor) and isinstance(tensor.placement, Partial):  # a part has the global shape
        rules.local(func, args, kwargs)
        placement: Placement = tensor.placement
        origin = None
    else:
        result = rules.dispatch(_ELSEWHERE[func], args, kwargs)
        if not isinstance(result, GlobalTensor):
            raise NeedsFullTensor
        with torch._C.DisableTorchFunctionSubclass():
            tensor.as_strided_(result.shape, result.stride(), result.storage_offset())
        placement, origin = result.placement, result._state.origin
    before = tensor._state
    tensor._state = GlobalState(placement, origin=origin, source=before.source, is_lent=before.is_lent)
    if root is not None and root is not tensor:
        rules.keep_on(root)
    elif root is not None and before.full is not None:  # the cell's samples stay views of it
        rules.keep(root, func(before.full.tensor, *args[1:], **kwargs))
    return tensor


def detach_in_place(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``detach_``: swap in a detached tensor, as PyTorch refuses ``detach_`` for views, which a model's results are."""
    tensor = args[0]
    if isinstance(tensor, GlobalTensor) and requires_grad(tensor):
        with torch._C.DisableTorchFunctionSubclass():
            detached = from_local(to_local(tensor).detach(), tensor.placement)
            rules.trace(detached, torch.Tensor.detach, (tensor,), {})
            torch.utils.swap_tensors(tensor, detached)
    return tensor


def permute(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``permute``, ``transpose`` and similar: the sharded dim gets its new position."""
    tensor, placement = the_shard(args, kwargs)
    ndim = ndim_of(tensor)
    name = func.__name__
    if name in ("transpose", "swapaxes", "swapdims"):
        order = list(range(ndim))
        a, b = (kwargs.get(key, args[i] if len(args) > i else 0) % ndim for i, key in ((1, "dim0"), (2, "dim1")))
        order[a], order[b] = order[b], order[a]
    elif name in ("t", "__get__"):  # t(), .T, .mT
        order = list(range(ndim))[::-1]
        if func == torch.Tensor.mT.__get__ and ndim > 2:  # type: ignore[attr-defined]
            order = [*range(ndim - 2), ndim - 1, ndim - 2]
    else:
        given = kwargs.get("dims", args[1:])
        if len(given) == 1 and isinstance(given[0], list | tuple):
            given = given[0]
        order = [dim % ndim for dim in given]
    return from_local(rules.local(func, args, kwargs), Shard(order.index(placement.dim), placement.share, placement.unit))


def move(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``movedim``."""
    tensor, placement = the_shard(args, kwargs)
    ndim = ndim_of(tensor)
    given = [kwargs.get(key, args[i] if len(args) > i else None) for i, key in ((1, "source"), (2, "destination"))]
    if not all(isinstance(dims, int | list | tuple) for dims in given):
        raise NeedsFullTensor
    ends = [(dims,) if isinstance(dims, int) else tuple(dims or ()) for dims in given]
    sources, targets = ([dim % ndim for dim in dims] for dims in ends)
    result = rules.local(func, args, kwargs)  # raises PyTorch's errors
    others = iter(dim for dim in range(ndim) if dim not in sources)
    order = [sources[targets.index(dim)] if dim in targets else next(others) for dim in range(ndim)]
    return from_local(result, Shard(order.index(placement.dim), placement.share, placement.unit))


def unflatten(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``unflatten`` of a dim that is not sharded."""
    tensor, placement = the_shard(args, kwargs)
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(dim, int) or dim % ndim_of(tensor) == placement.dim:
        raise NeedsFullTensor
    result = rules.local(func, args, kwargs)
    more = ndim_of(result) - ndim_of(tensor) if dim % ndim_of(tensor) < placement.dim else 0
    return from_local(result, Shard(placement.dim + more, placement.share, placement.unit))


def expand(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``expand`` to a global shape that keeps the sharded dim."""
    tensor, placement = the_shard(args[:1], {})
    given = kwargs.get("size", args[1:])
    if len(given) == 1 and isinstance(given[0], list | tuple):
        given = given[0]
    dim = placement.dim + len(given) - ndim_of(tensor)
    if dim < 0 or given[dim] not in (-1, placement.total):
        raise NeedsFullTensor
    sizes = [-1 if index == dim else size for index, size in enumerate(given)]
    with torch._C.DisableTorchFunctionSubclass():
        return from_local(tensor.expand(sizes), Shard(dim, placement.share, placement.unit))


def repeat(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``repeat`` and ``tile`` along dims that are not sharded."""
    tensor, placement = the_shard(args[:1], {})
    given = kwargs.get("repeats", kwargs.get("dims", args[1:]))
    if len(given) == 1 and isinstance(given[0], list | tuple):
        given = given[0]
    more = len(given) - ndim_of(tensor)
    if placement.dim + more >= 0 and given[placement.dim + more] != 1:
        raise NeedsFullTensor
    return from_local(rules.local(func, args, kwargs), Shard(placement.dim + max(more, 0), placement.share, placement.unit))


def repeat_interleave(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``repeat_interleave`` by a number: along a dim that is not sharded, or along dim 0, where each sample then has more rows."""
    tensor, placement = the_shard(args[:1], {})
    times = kwargs.get("repeats", args[1] if len(args) > 1 else None)
    dim = kwargs.get("dim", args[2] if len(args) > 2 else None)
    ndim = ndim_of(tensor)
    if not isinstance(times, int) or times < 1 or (dim is None and ndim != 1):
        raise NeedsFullTensor
    if (0 if dim is None else dim % ndim) != placement.dim:
        return from_local(rules.local(func, args, kwargs), placement)
    if placement.dim != 0:
        raise NeedsFullTensor
    return from_local(rules.local(func, args, kwargs), Shard(0, placement.share, placement.unit * times))

"""Rules of elementwise operations: arithmetic, comparisons, activations, conversions."""

from __future__ import annotations

from typing import Any

import torch

from ..deferred import MOST_PENDING, DeferredReduction, is_narrow, keep_later, later_of, may_wait
from ..functional_collectives import weigh
from ..placement_types import GlobalTensor, Partial, Placement, Shard, from_local, to_local
from ..versions import count_together
from .dispatch import Rules
from .operands import NeedsFullTensor, at, changes_in_place, globals_in, ndim_of

_NUMBERS = frozenset((int, float, bool))


def _alike(first: GlobalTensor, second: GlobalTensor) -> bool:
    """Return whether two tensors have the same placement and number of dims."""
    if first is second:
        return True
    if first.placement is not second.placement and first.placement != second.placement:
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return first.dim() == second.dim()


def elementwise(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Elementwise operations with broadcasting: on parts; replicated operands are sliced to match."""
    if func.__name__ == "where" and len(args) + len(kwargs) == 1:
        raise NeedsFullTensor  # the indices of true entries
    if not kwargs and 0 < len(args) < 3:  # the most frequent case has a shorter path
        first, second = args[0], args[-1]
        if type(first) is GlobalTensor and (first is second or type(second) in _NUMBERS or type(second) is GlobalTensor):
            placement = first.placement
            if type(placement) is Shard and (type(second) in _NUMBERS or _alike(first, second)):
                with torch._C.DisableTorchFunctionSubclass():
                    result = func(*args)
                    if result is first:
                        return result
                    return from_local(result, placement)
    operands = globals_in((*args, *kwargs.values()))
    if any(isinstance(t.placement, Partial) for t in operands):
        if all(isinstance(t.placement, Partial) for t in operands):
            return _linear(rules, func, args, kwargs)
        # A shard and a partial value (as in centring by the mean): read the partial value first.
        if changes_in_place(func) and isinstance(args[0], GlobalTensor) and isinstance(args[0].placement, Partial):
            raise NeedsFullTensor
        return elementwise(rules, func, *_partials_whole(rules, args, kwargs))
    return _on_shards(rules, func, args, kwargs, operands)


def _partials_whole(rules: Rules, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def convert(value: Any) -> Any:
        return rules.full_tensor(value) if isinstance(value, GlobalTensor) and isinstance(value.placement, Partial) else value

    return tuple(convert(arg) for arg in args), {key: convert(value) for key, value in kwargs.items()}


def fitted(value: Any, placement: Shard, from_right: int) -> Any:
    """Return an operand that broadcasts against a shard; a replicated one is sliced to match.

    Parameters
    ----------
    value : object
        A shard, a replicated tensor, or anything else, which is returned as it is.
    placement : Shard
        Of the other operand.
    from_right : int
        Its sharded dim, counted from the right; 1 is the last dim.

    Raises
    ------
    NeedsFullTensor
        The placements, or the sizes of the sharded dim, do not match.
    """
    if isinstance(value, GlobalTensor):
        other = value.placement
        if not isinstance(other, Shard) or other.share != placement.share or other.unit != placement.unit:
            raise NeedsFullTensor
        if ndim_of(value) - other.dim != from_right:
            raise NeedsFullTensor
    elif isinstance(value, torch.Tensor):
        dim = value.dim() - from_right
        if dim >= 0 and value.shape[dim] != 1:
            if value.shape[dim] != placement.total:
                raise NeedsFullTensor
            return value[at(dim, placement.loaded)]
    return value


def _on_shards(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[GlobalTensor]) -> Any:
    first = operands[0]
    assert isinstance(first.placement, Shard)
    placement = first.placement
    from_right = ndim_of(first) - placement.dim

    def fit(value: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(item, torch.Tensor) for item in value):
            return type(value)(fit(item) for item in value)
        return fitted(value, placement, from_right)

    new_args = tuple(fit(arg) for arg in args)
    new_kwargs = {key: fit(value) for key, value in kwargs.items()}
    if not args:
        raise NeedsFullTensor  # all by keyword
    if changes_in_place(func) and not isinstance(args[0], GlobalTensor):
        raise NeedsFullTensor  # a replicated tensor cannot become a shard in place
    result = rules.local(func, new_args, new_kwargs)
    if result is args[0] or not isinstance(result, torch.Tensor):
        return result
    return from_local(result, Shard(result.dim() - from_right, placement.share, placement.unit))


_ADD = frozenset(("add", "sub", "subtract", "__add__", "__radd__", "__sub__", "__rsub__", "add_", "sub_", "__iadd__", "__isub__"))
_MULTIPLY = frozenset(("mul", "multiply", "__mul__", "__rmul__", "mul_", "__imul__"))
_DIVIDE = frozenset(("div", "divide", "true_divide", "__truediv__", "div_", "__itruediv__"))
_NEGATE = frozenset(("neg", "negative", "__neg__", "positive", "__pos__"))


def _linear(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Linear operations on partial values give partial values. NeedsFullTensor for all others, which read the values."""
    name = getattr(func, "__name__", "")
    target = args[0] if changes_in_place(func) else None
    if kwargs or (target is not None and not isinstance(target, GlobalTensor)):  # alpha=, rounding_mode=, out=
        raise NeedsFullTensor
    if name in _ADD and len(args) == 2:
        return _add(rules, func, args, target)
    if name in _MULTIPLY and target is None and isinstance(args[1], GlobalTensor) and not isinstance(args[0], GlobalTensor):
        func, args = torch.mul, (args[1], args[0])
    partial = args[0]
    if (name not in _MULTIPLY | _DIVIDE | _NEGATE) or not isinstance(partial, GlobalTensor) or globals_in(args[1:]):
        raise NeedsFullTensor
    return _done(rules, func, args, args, partial.placement, target)


def _add(rules: Rules, func: Any, args: tuple[Any, ...], target: GlobalTensor | None) -> Any:
    left, right = args
    partials = [arg for arg in args if isinstance(arg, GlobalTensor)]
    placements = {p.placement for p in partials if isinstance(p.placement, Partial)}
    if len(placements) == 1:
        (placement,) = placements
        if len(partials) == 2 or placement.weight is not None:
            # Means with equal weights, or one with a replicated operand, which is its own weighted mean.
            return _done(rules, func, args, args, placement, target)
    if target is not None and isinstance(target.placement, Partial) and target.placement.weight is not None:
        raise NeedsFullTensor

    return _done(rules, func, args, (_as_sum(left, rules.rank), _as_sum(right, rules.rank)), Partial(), target)


def _as_sum(value: Any, rank: int) -> Any:
    """Return a rank's part of `value` as a part of a sum: of a mean, times the weight; of a replicated value, all of it on rank 0."""
    if isinstance(value, GlobalTensor):
        assert isinstance(value.placement, Partial)
        return value if value.placement.weight is None else weigh(to_local(value), value.placement.weight)
    return value if rank == 0 else value * 0


def _done(rules: Rules, func: Any, args: tuple[Any, ...], parts: tuple[Any, ...], placement: Placement, target: GlobalTensor | None) -> Any:
    """Run `func` on parts, and defer it to the reduced values as well if rounding differences would show (`deferred`)."""
    operands = globals_in(args)
    may_be_noted = all(may_wait(operand) for operand in operands)
    shows = any(later_of(operand) is not None for operand in operands) or (target is not None and is_narrow(target))
    noted = [_later(arg) for arg in args] if may_be_noted and shows else None  # before `func` changes one in place
    with torch._C.DisableTorchFunctionSubclass():
        result = func(*parts)
    placed = target if target is not None else from_local(result, placement)
    if may_be_noted and (shows or is_narrow(placed)):
        later = DeferredReduction(func if target is None else _on_copy(func), [_later(arg) for arg in args] if noted is None else noted)
        if later.num_pending > MOST_PENDING:
            rules.exchange.resolve(later)
        keep_later(placed, later)
    return placed


def _later(value: Any) -> Any:
    """Return an operand for deferred computation: a `DeferredReduction`, or a copy of a replicated tensor, which may change until then."""
    if not isinstance(value, GlobalTensor):
        return value.detach().clone() if isinstance(value, torch.Tensor) else value
    later = later_of(value)
    if later is None:
        with torch._C.DisableTorchFunctionSubclass():
            wide, dtype = value.detach().to(torch.float64, copy=True), value.dtype
        later = DeferredReduction(part=to_local(_as_sum(from_local(wide, value.placement), 0)), dtype=dtype)
        keep_later(value, later)
    return later


def _on_copy(func: Any) -> Any:
    """Return `func`, which writes into its first operand, as a function that writes into a copy."""

    def run(first: torch.Tensor, *others: Any) -> Any:
        return func(first.clone(), *others)

    return run


_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


def keeps(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Operations that keep values and shape (``detach``, ``clone``, ``cpu``): the placement stays, whether shard or partial."""
    first = args[0] if args else None
    if not isinstance(first, GlobalTensor):
        raise NeedsFullTensor
    # Of another tensor among the arguments only dtype or device is used (`type_as`, `to(other)`).
    result = rules.local(func, args, kwargs)
    if result is first or not isinstance(result, torch.Tensor):
        return result
    kept = from_local(result, first.placement)
    if func == _DATA:
        count_together(first, kept)
    if isinstance(first.placement, Partial) and may_wait(first) and (is_narrow(kept) or later_of(first) is not None):
        keep_later(kept, DeferredReduction(lambda value: rules.local(func, (value, *args[1:]), kwargs), [_later(first)]))
    known = rules.exchange.known(first)
    if known is not None and known.dtype == result.dtype:
        rules.exchange.cache_value(kept, known.clone())
    return kept


def to_dtype(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Conversions of dtype: of shards always, of partial values only if sums stay valid (not from float to integer, not to bool)."""
    first = args[0]
    if not isinstance(first, GlobalTensor):
        return rules.local(func, args, kwargs)  # only the other tensor's dtype is used
    result = keeps(rules, func, args, kwargs)
    if isinstance(first.placement, Partial) and isinstance(result, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            old, new = first.dtype, result.dtype
        if new != old and (new == torch.bool or (old.is_floating_point and not new.is_floating_point)):
            raise NeedsFullTensor
    return result

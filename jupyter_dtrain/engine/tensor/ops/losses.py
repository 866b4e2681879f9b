"""Rules of losses, whose reductions are over the global batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..functional_collectives import nothing_of
from ..pending_checks import check
from ..placement_types import GlobalTensor, Partial, Shard, from_local
from .dispatch import Rules
from .operands import NeedsFullTensor, globals_in, ndim_of, tensors_in

_OF_NUMBERED_CLASSES = frozenset((F.cross_entropy, F.nll_loss))
_OF_CLASSES = frozenset((F.cross_entropy, F.nll_loss, F.multi_margin_loss))
_TARGET_PER_ROW = _OF_CLASSES | {F.cosine_embedding_loss}  # one target per row; other losses broadcast operands
_OF_VECTORS = frozenset(  # an input with one dim is a single sample
    (*_TARGET_PER_ROW, F.multilabel_margin_loss, F.multilabel_soft_margin_loss, F.triplet_margin_loss, F.triplet_margin_with_distance_loss)
)
_WEIGHTED_MEAN = frozenset((F.mse_loss, F.l1_loss, F.huber_loss))


class CountTargets(BaseException):
    """Ends the cell at the first ignored target; the run resumes from its last snapshot and then counts targets in every batch.

    Not an ``Exception``, so that the cell's own handlers do not catch it.
    """


def loss(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Losses: a shard for ``reduction="none"``, partial for a sum or mean. Replicated operands are sliced to match."""
    if kwargs.get("size_average") is not None or kwargs.get("reduce") is not None:
        raise NeedsFullTensor  # deprecated arguments
    reduction = kwargs.get("reduction", "mean")
    if (rows := _rows_of_both(func, args, kwargs)) is not None:  # the most frequent case: nothing to slice
        return _reduced(rules, func, args, kwargs, reduction, rows)
    globals_here = globals_in([*args, *kwargs.values()])
    if any(not isinstance(t.placement, Shard) or t.placement.dim != 0 for t in globals_here):
        raise NeedsFullTensor
    placement = globals_here[0].placement
    assert isinstance(placement, Shard)

    if func in _WEIGHTED_MEAN and reduction == "mean" and kwargs.get("weight") is not None:
        raise NeedsFullTensor  # the divisor is the sum of the weights
    counted = tensors_in(args) if func.__name__ == "gaussian_nll_loss" else globals_here  # its variance may have one entry per row
    ndims = {ndim_of(t) for t in counted}
    if func not in _TARGET_PER_ROW and len(ndims) > 1:
        raise NeedsFullTensor  # (N, 1) and (N,) broadcast to (N, N); PyTorch only warns
    ndim = min(ndims)
    if reduction == "batchmean" and (not args or _has_other_rows(args[0], ndim, placement.total)):
        raise NeedsFullTensor  # the divisor is the input's number of rows before broadcasting
    if func in _OF_VECTORS and args and isinstance(args[0], torch.Tensor) and ndim_of(args[0]) < 2:
        raise NeedsFullTensor

    def fit(value: Any) -> Any:
        if isinstance(value, GlobalTensor):
            if value.placement is not placement and value.placement != placement:
                raise NeedsFullTensor
        elif isinstance(value, torch.Tensor) and value.dim():
            if value.shape[0] == placement.total and (value.dim() == ndim or func in _TARGET_PER_ROW):
                return value[placement.loaded]
            if value.dim() > ndim and func not in _TARGET_PER_ROW:
                raise NeedsFullTensor  # the result would have the samples along a later dim
            if (value.dim() == ndim or func in _TARGET_PER_ROW) and value.shape[0] != 1:
                raise NeedsFullTensor
        return value

    of_classes = func in _OF_CLASSES  # their `weight` is one number per class
    new_args = tuple(arg if of_classes and position == 2 else fit(arg) for position, arg in enumerate(args))
    new_kwargs = {key: value if key == "pos_weight" or (of_classes and key == "weight") else fit(value) for key, value in kwargs.items()}
    return _reduced(rules, func, new_args, new_kwargs, reduction, placement)


def _rows_of_both(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shard | None:
    """Return the common placement of input and target if both are shards along dim 0 of one batch and no other argument is a tensor."""
    if len(args) != 2 or type(args[0]) is not GlobalTensor or type(args[1]) is not GlobalTensor:
        return None
    ndim = ndim_of(args[0])
    if (func not in _TARGET_PER_ROW and ndim_of(args[1]) != ndim) or (func in _OF_VECTORS and ndim < 2):
        return None
    placement = args[0].placement
    if not isinstance(placement, Shard) or placement.dim or args[1].placement != placement:
        return None
    return None if any(isinstance(value, torch.Tensor) for value in kwargs.values()) else placement


def _has_other_rows(tensor: torch.Tensor, ndim: int, total: int) -> bool:
    """Return whether the input of a loss is a replicated tensor that does not have one row for each of the `total` samples."""
    return not isinstance(tensor, GlobalTensor) and (tensor.dim() != ndim or tensor.shape[0] != total)


def _reduced(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reduction: str, placement: Shard) -> Any:
    """Compute a loss on the rank's rows and return it with its placement."""
    if reduction == "mean" and func in _OF_NUMBERED_CLASSES:
        return _class_loss(rules, func, args, kwargs, placement)
    result = rules.local(func, args, kwargs)
    if reduction == "none":
        return from_local(result, placement)
    if reduction == "sum":
        return from_local(result if placement.counts else nothing_of(result), Partial())
    return from_local(result, Partial.mean(placement.share))


def _class_loss(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], placement: Shard) -> Any:
    """Mean of a classification loss, whose divisor depends on the targets: ignored ones, class weights. A collective in general."""
    target = kwargs.get("target", args[1] if len(args) > 1 else None)
    weights = kwargs.get("weight", args[2] if len(args) > 2 else None)
    ignored = kwargs.get("ignore_index", -100)
    assert target is not None
    with torch._C.DisableTorchFunctionSubclass():
        if target.is_floating_point():  # probabilities of classes
            return from_local(func(*args, **kwargs), Partial.mean(placement.share))
        keep = target != ignored
        # Plain classification hardly ever has ignored targets: after a few batches without one, the ranks stop exchanging the count.
        asks = rules.count_targets or weights is not None or target.dim() > 1 or placement.unit > 1
        if not asks and rules.without_ignored.get(ignored, 0) >= _ASK:
            if placement.counts:
                check(keep.all(), lambda: CountTargets(_FIRST_IGNORED.format(ignored)))
            return from_local(func(*args, **kwargs), Partial.mean(placement.share))
        divisor = keep.sum() if weights is None else (weights[target.clamp(0, len(weights) - 1)] * keep).sum()
        whole = rules.exchange.total(divisor if placement.counts else torch.zeros_like(divisor))
        if not asks:
            complete = int(whole) == target.numel() // (placement.loaded.stop - placement.loaded.start) * placement.total
            rules.without_ignored[ignored] = rules.without_ignored.get(ignored, 0) + 1 if complete else -(2**31)
            if complete:
                return from_local(func(*args, **kwargs), Partial.mean(placement.share))
        result = func(*args, **{**kwargs, "reduction": "sum"}) / whole
        return from_local(result if placement.counts else nothing_of(result), Partial())


_ASK = 8
_FIRST_IGNORED = f"a target is {{}}, the class that the loss ignores, for the first time after {_ASK} batches without"


def ctc(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``ctc_loss`` with padded targets ``(B, S)``: the predictions ``(T, B, C)`` have the samples along dim 1."""
    names = ("log_probs", "targets", "input_lengths", "target_lengths", "blank", "reduction", "zero_infinity")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    predicted, targets = given.get("log_probs"), given.get("targets")
    if not isinstance(predicted, GlobalTensor) or not isinstance(targets, torch.Tensor) or ndim_of(predicted) != 3 or ndim_of(targets) != 2:
        raise NeedsFullTensor
    placement = predicted.placement
    if not isinstance(placement, Shard) or placement.dim != 1 or placement.unit != 1:
        raise NeedsFullTensor
    rows = Shard(0, placement.share)
    for name in names[1:4]:
        value = given.get(name)
        if isinstance(value, GlobalTensor):
            if value.placement != rows:
                raise NeedsFullTensor
        elif not isinstance(value, torch.Tensor | list | tuple) or len(value) != placement.total:
            raise NeedsFullTensor
        else:
            given[name] = value[placement.loaded]
    return _reduced(rules, func, (), given, given.get("reduction", "mean"), rows)

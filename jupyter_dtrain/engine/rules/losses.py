"""Losses and their means over the global batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..exchange import nothing_of
from ..placements import GlobalTensor, Partial, Shard, place
from .dispatch import (
    NeedsWhole,
    Rules,
    globals_in,
    ndim_of,
)

_OF_NUMBERED_CLASSES = frozenset((F.cross_entropy, F.nll_loss))
_OF_CLASSES = frozenset((F.cross_entropy, F.nll_loss, F.multi_margin_loss))


def loss(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Losses: rows stay rows, a sum is a sum of the parts' sums, a mean a weighted mean of theirs."""
    if kwargs.get("size_average") is not None or kwargs.get("reduce") is not None:
        raise NeedsWhole  # the old spelling
    reduction = kwargs.get("reduction", "mean")
    if (rows := _rows_of_both(args, kwargs)) is not None:  # nothing has to be cut: this is nearly all
        return _reduced(rules, func, args, kwargs, reduction, rows)
    globals_here = globals_in([*args, *kwargs.values()])
    if any(not isinstance(t.placement, Shard) or t.placement.dim != 0 for t in globals_here):
        raise NeedsWhole
    placement = globals_here[0].placement
    assert isinstance(placement, Shard)

    ndim = min(ndim_of(t) for t in globals_here) if func in _OF_CLASSES else ndim_of(globals_here[0])

    def fit(value: Any) -> Any:
        if isinstance(value, GlobalTensor):
            if value.placement is not placement and value.placement != placement:
                raise NeedsWhole
        elif isinstance(value, torch.Tensor) and value.dim():
            if value.shape[0] == placement.total and (value.dim() == ndim or func in _OF_CLASSES):
                return value[placement.loaded]
            if (value.dim() >= ndim or func in _OF_CLASSES) and value.shape[0] != 1:
                raise NeedsWhole
        return value

    of_classes = func in _OF_CLASSES  # their `weight` is one number per class
    new_args = tuple(arg if of_classes and position == 2 else fit(arg) for position, arg in enumerate(args))
    new_kwargs = {key: value if key == "pos_weight" or (of_classes and key == "weight") else fit(value) for key, value in kwargs.items()}
    return _reduced(rules, func, new_args, new_kwargs, reduction, placement)


def _rows_of_both(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shard | None:
    """Return the placement of input and target where both are the rank's rows of one batch and nothing else is a tensor."""
    if len(args) != 2 or type(args[0]) is not GlobalTensor or type(args[1]) is not GlobalTensor:
        return None
    placement = args[0].placement
    if not isinstance(placement, Shard) or placement.dim or args[1].placement != placement:
        return None
    return None if any(isinstance(value, torch.Tensor) for value in kwargs.values()) else placement


def _reduced(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reduction: str, placement: Shard) -> Any:
    """Compute a loss on the rank's rows, and place what comes out."""
    if reduction == "mean" and func in _OF_NUMBERED_CLASSES:
        return _class_loss(rules, func, args, kwargs, placement)
    result = rules.local(func, args, kwargs)
    if reduction == "none":
        return place(result, placement)
    if reduction == "sum":
        return place(result if placement.counts else nothing_of(result), Partial())
    return place(result, Partial.mean(placement.share))


def _class_loss(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], placement: Shard) -> Any:
    """Take the mean over classes' targets, whose divisor depends on them: ignored entries, weights of classes."""
    target = kwargs.get("target", args[1] if len(args) > 1 else None)
    weights = kwargs.get("weight", args[2] if len(args) > 2 else None)
    ignored = kwargs.get("ignore_index", -100)
    assert target is not None
    with torch._C.DisableTorchFunctionSubclass():
        if target.is_floating_point():  # probabilities of classes
            return place(func(*args, **kwargs), Partial.mean(placement.share))
        keep = target != ignored
        # Nearly never is a target of a plain classification ignored. Ranks ask each other only a few times whether one is.
        asks = weights is not None or target.dim() > 1 or placement.unit > 1
        if not asks and rules.without_ignored.get(ignored, 0) >= _ASK:
            if placement.counts and not keep.all():
                raise RuntimeError(
                    f"a target is {ignored}, the class that the loss ignores, for the first time after {_ASK} batches without one. "
                    "Give the loss class weights (`weight=torch.ones(num_classes)`) to have the others counted in every batch."
                )
            return place(func(*args, **kwargs), Partial.mean(placement.share))
        divisor = keep.sum() if weights is None else (weights[target.clamp(0, len(weights) - 1)] * keep).sum()
        whole = rules.exchange.total(divisor if placement.counts else torch.zeros_like(divisor))
        if not asks:
            complete = int(whole) == target.numel() // (placement.loaded.stop - placement.loaded.start) * placement.total
            rules.without_ignored[ignored] = rules.without_ignored.get(ignored, 0) + 1 if complete else -(2**31)
        result = func(*args, **{**kwargs, "reduction": "sum"}) / whole
        return place(result if placement.counts else nothing_of(result), Partial())


_ASK = 8

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
)

_OF_CLASSES = frozenset((F.cross_entropy, F.nll_loss, F.multi_margin_loss))


def loss(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Losses: rows stay rows, a sum is a sum of the parts' sums, a mean a weighted mean of theirs."""
    if kwargs.get("size_average") is not None or kwargs.get("reduce") is not None:
        raise NeedsWhole  # the old spelling
    reduction = kwargs.get("reduction", "mean")
    globals_here = globals_in([*args, *kwargs.values()])
    if any(not isinstance(t.placement, Shard) or t.placement.dim != 0 for t in globals_here):
        raise NeedsWhole
    placement = globals_here[0].placement
    assert isinstance(placement, Shard)

    def fit(value: Any) -> Any:
        if isinstance(value, GlobalTensor):
            if value.placement != placement:
                raise NeedsWhole
        elif isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == placement.total:
            return value[placement.loaded]
        return value

    of_classes = func in _OF_CLASSES  # their `weight` is one number per class
    new_args = tuple(arg if of_classes and position == 2 else fit(arg) for position, arg in enumerate(args))
    new_kwargs = {key: value if key == "pos_weight" or (of_classes and key == "weight") else fit(value) for key, value in kwargs.items()}
    if reduction == "mean" and func in (F.cross_entropy, F.nll_loss):
        return _class_loss(rules, func, new_args, new_kwargs, placement)
    result = rules.local(func, new_args, new_kwargs)
    if reduction == "none":
        return place(result, placement)
    if reduction == "sum":
        return place(result if placement.counts else nothing_of(result), Partial())
    return place(result, Partial(placement.share.weight))


def _class_loss(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], placement: Shard) -> Any:
    """Take the mean over classes' targets, whose divisor depends on them: ignored entries, weights of classes."""
    target = kwargs.get("target", args[1] if len(args) > 1 else None)
    weights = kwargs.get("weight", args[2] if len(args) > 2 else None)
    ignored = kwargs.get("ignore_index", -100)
    assert target is not None
    with torch._C.DisableTorchFunctionSubclass():
        per_entry = not target.is_floating_point() and (weights is not None or ignored != -100 or target.dim() > 1 or placement.unit > 1)
        result = func(*args, **kwargs)
        if not per_entry:
            return place(result, Partial(placement.share.weight))
        keep = target != ignored
        if weights is None:
            divisor = keep.sum().double()
        else:
            divisor = (weights[target.clamp(0, len(weights) - 1)] * keep).sum().double()
        if not placement.counts:
            divisor = torch.zeros_like(divisor)
        if not float(divisor):  # a mean over nothing would be nan, and so would its gradient
            result = func(*args, **{**kwargs, "reduction": "sum"}) * 0
        whole = rules.exchange.total(divisor)
        weight = float(divisor / whole) if float(whole) else placement.share.weight
        return place(result, Partial(weight))

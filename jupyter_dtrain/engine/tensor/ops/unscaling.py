"""The rule of ``GradScaler.unscale_``, whose gradients may be sharded."""

from __future__ import annotations

from typing import Any

import torch

from ..placement_types import GlobalTensor, Partial, Shard, from_local, to_local
from .dispatch import Rules
from .operands import NeedsFullTensor


def unscale(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Divide gradients by the scale, each rank its own rows; one all-reduce tells all ranks whether any rank has an infinite one."""
    gradients, found_inf, *rest = args
    for tensor in gradients:
        if isinstance(tensor, GlobalTensor) and (not isinstance(tensor.placement, Shard) or rules.is_read(tensor)):
            raise NeedsFullTensor
    if any(isinstance(value, GlobalTensor) for value in (found_inf, *rest, *kwargs.values())):
        raise NeedsFullTensor
    counted, others = torch.zeros_like(found_inf), torch.zeros_like(found_inf)
    for found, of_parts in ((counted, True), (others, False)):  # what stands in for an empty shard is not the gradient's
        own = [to_local(t) if isinstance(t, GlobalTensor) else t for t in gradients if _counts(t) is of_parts]
        if own:
            func(own, found, *rest, **kwargs)
    with torch.no_grad():
        found_inf.masked_fill_(rules.full_tensor(from_local(counted, Partial())) > 0, 1.0)
    return None


def _counts(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, GlobalTensor) or not isinstance(tensor.placement, Shard) or tensor.placement.counts

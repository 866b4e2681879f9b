"""``nn.Sequential``: linear layers with activations and dropout between them, two by two."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .elementwise import is_elementwise
from .rule import Pair, Rule, register


def _pairs(module: nn.Module) -> Sequence[Pair]:
    parts = list(module._modules.values())
    found: list[Pair] = []
    first: nn.Linear | None = None
    between: list[nn.Module] = []
    for part in parts:
        if isinstance(part, nn.Linear) and sum(part is other for other in parts) == 1:
            if first is None:
                first, between = part, []
            else:
                found.append(Pair((first,), tuple(between), part))
                first = None
        elif part is not None and is_elementwise(part):
            between.append(part)
        else:
            first = None
    return found


register(Rule("torch.nn.modules.container.Sequential", _pairs, ("forward", "__iter__")))

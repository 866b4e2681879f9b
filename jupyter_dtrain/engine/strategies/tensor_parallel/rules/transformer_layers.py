"""The two linear layers of ``nn.TransformerEncoderLayer`` and ``nn.TransformerDecoderLayer``."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .elementwise import is_elementwise
from .rule import Pair, Rule, register


def _pairs(module: nn.Module) -> Sequence[Pair]:
    # ``self.linear2(self.dropout(self.activation(self.linear1(x))))``
    activation = getattr(module, "activation", None)
    parts = [getattr(module, name, None) for name in ("linear1", "dropout", "linear2")]
    linear1, dropout, linear2 = parts
    if not (isinstance(linear1, nn.Module) and isinstance(dropout, nn.Module) and isinstance(linear2, nn.Module)):
        return ()
    if not is_elementwise(activation) or not is_elementwise(dropout):
        return ()
    between = (activation, dropout) if isinstance(activation, nn.Module) else (dropout,)
    return [Pair((linear1,), between, linear2)]


for _name in ("TransformerEncoderLayer", "TransformerDecoderLayer"):
    register(Rule(f"torch.nn.modules.transformer.{_name}", _pairs, ("forward", "_ff_block")))

"""The MLPs of Hugging Face's transformers: ``down_proj(act_fn(gate_proj(x)) * up_proj(x))``."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .elementwise import is_elementwise
from .rule import Pair, Rule, register

_GATED = {
    "llama": "LlamaMLP",
    "mistral": "MistralMLP",
    "qwen2": "Qwen2MLP",
    "qwen3": "Qwen3MLP",
    "gemma": "GemmaMLP",
    "gemma2": "Gemma2MLP",
}


def _gated(module: nn.Module) -> Sequence[Pair]:
    gate, up, down, activation = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj", "act_fn"))
    if not (isinstance(gate, nn.Module) and isinstance(up, nn.Module) and isinstance(down, nn.Module)) or not is_elementwise(activation):
        return ()
    return [Pair((gate, up), (activation,) if isinstance(activation, nn.Module) else (), down)]


for _model, _name in _GATED.items():
    register(Rule(f"transformers.models.{_model}.modeling_{_model}.{_name}", _gated))

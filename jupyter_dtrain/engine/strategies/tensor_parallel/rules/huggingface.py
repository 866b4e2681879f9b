"""Layers of Hugging Face's transformers: MLPs, ``down_proj(act_fn(gate_proj(x)) * up_proj(x))``, and attention by heads.

Attention is one where nobody gets to see the heads: without a cache, which keeps keys and values, and by PyTorch's own function, which
returns no weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..linear_layers import is_transposed
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


# ``num_heads`` is an attribute of versions that do not take the number of heads from what they are given.


def _attention(module: nn.Module) -> Sequence[Pair]:
    parts = [getattr(module, f"{name}_proj", None) for name in "qkvo"]
    config = getattr(module, "config", None)
    heads = [getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads")]
    layers = [part for part in parts if isinstance(part, nn.Module)]
    counts = [number for number in heads if isinstance(number, int) and number > 0]
    if len(layers) < len(parts) or len(counts) < len(heads) or hasattr(module, "num_heads"):
        return ()
    return [Pair(tuple(layers[:3]), (), layers[3], heads=(counts[0], counts[1], counts[1]))]


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(part, torch.Tensor) for part in value)
    if isinstance(value, torch.Tensor):
        return value.dim() != 4 or value.shape[1] == 1  # a mask or a bias that is another one for each head
    return value is None or isinstance(value, bool | int | float | str)


def _shows_no_heads(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    has_cache = not all(map(_is_plain, (*args, *kwargs.values())))  # by which name it is given is not the same in all versions
    return not has_cache and getattr(module.config, "_attn_implementation", None) == "sdpa"


def _drops(module: Any) -> bool:
    dropped = getattr(module, "attention_dropout", None)
    return bool(module.training and (module.attn_dropout.p if dropped is None else dropped))


for _model, _name in {"llama": "LlamaAttention", "mistral": "MistralAttention", "qwen2": "Qwen2Attention"}.items():
    register(Rule(f"transformers.models.{_model}.modeling_{_model}.{_name}", _attention, holds_for=_shows_no_heads, drops=_drops))


# Layers of GPT-2 have weights that are transposed, and one of them for queries, keys and values.


def _gpt2_mlp(module: nn.Module) -> Sequence[Pair]:
    first, activation, second = (getattr(module, name, None) for name in ("c_fc", "act", "c_proj"))
    if not (isinstance(first, nn.Module) and isinstance(second, nn.Module) and is_transposed(first) and is_elementwise(activation)):
        return ()
    return [Pair((first,), (activation,) if isinstance(activation, nn.Module) else (), second)]


def _gpt2_attention(module: Any) -> Sequence[Pair]:
    first, second, heads = (getattr(module, name, None) for name in ("c_attn", "c_proj", "num_heads"))
    if not (isinstance(first, nn.Module) and isinstance(second, nn.Module) and is_transposed(first) and isinstance(heads, int)):
        return ()
    if getattr(module, "is_cross_attention", True) or not isinstance(getattr(module, "split_size", None), int):
        return ()
    return [Pair((first,), (), second, heads=(heads,), groups=3, width="split_size")]


_GPT2 = "transformers.models.gpt2.modeling_gpt2"
register(Rule(f"{_GPT2}.GPT2MLP", _gpt2_mlp))
register(Rule(f"{_GPT2}.GPT2Attention", _gpt2_attention, holds_for=_shows_no_heads, drops=_drops))

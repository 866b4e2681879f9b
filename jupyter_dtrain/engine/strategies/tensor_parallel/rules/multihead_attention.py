"""``nn.MultiheadAttention``, also that of ``nn.TransformerEncoderLayer`` and its like: its parameters by heads.

The weight and the bias of what queries, keys and values are computed with may be one parameter, in which those of the queries come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

_PACKED = 3
_PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class Heads:
    """How the parameters of an attention are divided by heads.

    Attributes
    ----------
    number : int
        Of heads.
    by_heads : tuple of tuple
        Parameters of which each rank is to have what belongs to its heads, with the dim and in how many parts that is along it.
    after_sum : tuple of nn.Parameter
        Those that are added when all heads are added up.
    why_not : str
        Why it is not to be computed by heads; empty: it may be.
    """

    number: int
    by_heads: tuple[tuple[nn.Parameter, int, int], ...]
    after_sum: tuple[nn.Parameter, ...]
    why_not: str = ""


def heads_of(module: nn.Module) -> Heads | None:
    """Return how an attention is divided by heads; ``None``: `module` is none."""
    if not isinstance(module, nn.MultiheadAttention):
        return None
    own: Any = module._parameters
    out: Any = module.out_proj._parameters
    found = [own[name] for name in _PROJECTIONS if own.get(name) is not None]
    weights = [*found, out.get("weight")]
    is_usual = type(module).forward is nn.MultiheadAttention.forward and "forward" not in vars(module)
    is_whole = len(found) in (1, _PACKED) and weights[-1] is not None and not any(map(is_lazy, weights))
    why_not = ""
    if not is_usual or not is_whole:
        why_not = "their attention is of another kind than usual"
    elif module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
        why_not = "their attention adds keys of its own"
    by_heads = [(weight, 0, _PACKED if len(found) == 1 else 1) for weight in found]
    by_heads += [(own[name], 0, _PACKED) for name in ("in_proj_bias",) if own.get(name) is not None]
    if weights[-1] is not None:
        by_heads.append((weights[-1], 1, 1))
    bias = out.get("bias")
    return Heads(module.num_heads, tuple(by_heads), () if bias is None else (bias,), why_not)

"""Dropout of attention weights where a rank has some of the heads: the mask is drawn for all heads, as in one process."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .column_parallel import Columns

_math = torch.ops.aten._scaled_dot_product_attention_math
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def kept_of(heads: Columns, like: torch.Tensor, num_keys: int, dropped: float) -> torch.Tensor:
    """Return the dropout mask of this rank's heads, (N, h, L, S), for queries like `like`, (N, h, L, d)."""
    ones = like.new_ones((like.shape[0], heads.total_size, like.shape[2], num_keys))
    return heads.own(nn.functional.dropout(ones, dropped), 1).bool()


def attention_without(
    query: Any, key: Any, value: Any, added: Any, dropped: float, is_causal: bool, kept: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Return ``F.scaled_dot_product_attention`` with the weights dropped that are not `kept`."""
    _warned()
    result: torch.Tensor = _math(query, key, value, added, dropped, is_causal, kept, **options)[0]
    return result


@cache
def _warned() -> None:
    """Trigger PyTorch's one-time warning that a dropout mask is for tests, and discard it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = torch.ones(1, 1, 1, 1, device="cpu")
        _math(one, one, one, None, 0.5, False, one.bool())


class DroppedByHeads(TorchFunctionMode):
    """Makes attention drop the weights that one process drops, while the mode is active.

    Parameters
    ----------
    heads : Columns
        Which heads this rank has.
    """

    def __init__(self, heads: Columns) -> None:
        super().__init__()
        self._heads = heads

    def __torch_function__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run an operation."""
        given = dict(zip(_NAMES, args, strict=False)) | (kwargs or {})
        dropped = given.get("dropout_p", 0.0)
        if func is not nn.functional.scaled_dot_product_attention or not dropped:
            return func(*args, **(kwargs or {}))
        query, key, mask = given["query"], given["key"], given.get("attn_mask")
        if mask is not None and mask.dtype == torch.bool:  # which would be added as a number
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -torch.inf)
        kept = kept_of(self._heads, query, key.shape[-2], dropped)
        options = {name: given[name] for name in ("scale", "enable_gqa") if name in given}
        return attention_without(query, key, given["value"], mask, dropped, given.get("is_causal", False), kept, **options)

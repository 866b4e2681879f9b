"""``F.multi_head_attention_forward`` sharded by heads: each rank computes its heads, and the outputs are all-reduced.

A rank has the rows of the query, key and value projections that belong to its heads, in one parameter or in three, and the matching
columns of the output projection. It computes attention of these heads alone, with the operations of PyTorch's function, in its order.
Other forms (``bias_k``, static keys) are left to PyTorch's function, with full parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from .column_parallel import Columns, copy, gather, reduce, split
from .dropped_heads import attention_without, kept_of
from .layer_parameter import InPass, LayerParameter, rows_of
from .linear_layers import is_value
from .pairs import Layers, is_watched
from .precision import Entered, enter, precision_for

_BATCHED = 3


class AttentionLayers(Layers, InPass, Protocol):
    """What computes the rank's part of linear layers: a :class:`.LayerStore`."""

    def own_bias(self, bias: torch.Tensor | None, columns: Columns) -> torch.Tensor | None:
        """Return the rank's part of a bias."""


class _Given(NamedTuple):
    """The inputs of a call, (L, N, E), with additive masks."""

    tensors: tuple[torch.Tensor, ...]
    padding: torch.Tensor | None  # (N, 1, 1, S)
    mask: torch.Tensor | None  # (L, S), or (N, H, L, S)
    is_causal: bool


class AttentionCalls:
    """Handles calls of PyTorch's function.

    Parameters
    ----------
    layers : AttentionLayers
    """

    def __init__(self, layers: AttentionLayers) -> None:
        self._layers = layers

    def call(
        self,
        query: Any,
        key: Any,
        value: Any,
        embed_dim_to_check: int,
        num_heads: int,
        in_proj_weight: Any,
        in_proj_bias: Any,
        bias_k: Any,
        bias_v: Any,
        add_zero_attn: bool,
        dropout_p: float,
        out_proj_weight: Any,
        out_proj_bias: Any,
        training: bool = True,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        use_separate_proj_weight: bool = False,
        q_proj_weight: Any = None,
        k_proj_weight: Any = None,
        v_proj_weight: Any = None,
        static_k: Any = None,
        static_v: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Return the output, (L, N, E), and attention weights; ``None`` if the call is not sharded by heads. Collective."""
        weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else (in_proj_weight,)
        dropped = dropout_p if training else 0.0
        others = (bias_k, bias_v, static_k, static_v)
        if add_zero_attn or any(other is not None for other in others) or dropped >= 1 or is_watched():
            return None
        shards = [self._layers.divided(weight) for weight in (*weights, out_proj_weight)]
        found = [shard for shard in shards if shard is not None]
        if len(found) < len(shards) or not _fit(found, embed_dim_to_check, num_heads):
            return None
        given = _given(query, key, value, [shard.shape[1] for shard in found[:-1]], key_padding_mask, attn_mask, num_heads)
        if given is None or (is_causal and attn_mask is None):
            return None
        if is_causal and key_padding_mask is None and not need_weights:
            given = given._replace(mask=None, is_causal=True)
        out = found[-1]
        heads = out.columns.like(of=embed_dim_to_check // num_heads)
        q, k, v = self._projected(given.tensors, weights, found[:-1], in_proj_bias, heads)
        result, seen = _attention(q, k, v, given, heads, dropped, need_weights=need_weights)  # (N, h, L, d), (N, h, L, S)
        num_samples, _, num_queries, _ = result.shape
        flat = result.permute(2, 0, 1, 3).reshape(num_queries * num_samples, -1)
        output = self._layers.by_rows(flat, out_proj_weight, out, out_proj_bias).view(num_queries, num_samples, -1)
        if seen is not None:
            seen = _mean(seen, heads) if average_attn_weights else gather(seen, heads, 1)
        if query.dim() == _BATCHED:
            return output, seen
        return output.squeeze(1), None if seen is None else seen.squeeze(0)

    def _projected(
        self, given: Sequence[torch.Tensor], weights: Sequence[Any], shards: Sequence[LayerParameter], bias: Any, heads: Columns
    ) -> list[torch.Tensor]:
        """Return the queries, keys and values of this rank's heads, (N, h, L, d)."""
        columns = shards[0].columns
        entered: dict[int, Entered] = {}
        for one in given:
            if id(one) not in entered:
                entered[id(one)] = enter(one, columns)
        is_packed = len(weights) == 1
        if is_packed and len(entered) == 1:
            parts = self._layers.by_columns(entered[id(given[0])], weights[0], shards[0], bias).chunk(3, -1)
        else:
            rows = [rows_of(weight, shard, self._layers) for weight, shard in zip(weights, shards, strict=True)]
            own = self._layers.own_bias(bias, columns if is_packed else columns.like(times=3))
            of_weights = rows[0].chunk(3) if is_packed else rows
            of_bias = (None, None, None) if own is None else own.chunk(3)
            parts = tuple(
                to.precision.result(to.precision.linear(to.value, weight, part))
                for to, weight, part in zip((entered[id(one)] for one in given), of_weights, of_bias, strict=True)
            )
        number = sum(size for _, size in heads.pieces)
        return [part.unflatten(-1, (number, -1)).permute(1, 2, 0, 3) for part in parts]


def _fit(shards: Sequence[LayerParameter], size: int, num_heads: int) -> bool:
    """Return whether each rank has the rows and columns of all parameters that belong to its heads."""
    *firsts, out = shards
    groups = 3 if len(firsts) == 1 else 1
    as_divided = all(shard.dim == 0 and shard.storage.kind.groups == groups for shard in firsts)
    is_even = num_heads % len(out.shares) == 0 and size % num_heads == 0
    return (
        as_divided
        and is_even
        and (out.dim, out.storage.kind.groups, out.shape) == (1, 1, (size, size))
        and all(shard.shape[0] == groups * size for shard in firsts)
    )


def _given(query: Any, key: Any, value: Any, sizes: Sequence[int], padding: Any, mask: Any, num_heads: int) -> _Given | None:
    """Return the inputs of a call, ``None`` where PyTorch's function would refuse them, so that it does."""
    widths = [*sizes] * 3 if len(sizes) == 1 else [*sizes]
    tensors = (query, key, value)
    if not all(is_value(one, width) and one.dim() == query.dim() for one, width in zip(tensors, widths, strict=True)):
        return None
    if query.dim() not in (2, _BATCHED) or key.shape[:-1] != value.shape[:-1] or query.shape[1:-1] != key.shape[1:-1]:
        return None
    if query.dim() != _BATCHED:
        # The same tensor stays one: it is gone into once.
        there = {id(one): one.unsqueeze(1) for one in tensors}
        tensors = (there[id(query)], there[id(key)], there[id(value)])
        padding = None if padding is None else padding.unsqueeze(0)
    num_queries, num_samples, num_keys = tensors[0].shape[0], tensors[0].shape[1], tensors[1].shape[0]
    if padding is not None:
        if tuple(padding.shape) != (num_samples, num_keys):
            return None
        padding = _added(padding, query.dtype).view(num_samples, 1, 1, num_keys)
    if mask is not None:
        shapes = {2: (num_queries, num_keys), 3: (num_samples * num_heads, num_queries, num_keys)}
        if tuple(mask.shape) != shapes.get(mask.dim()):
            return None
        mask = _added(mask, query.dtype)
        mask = mask.view(num_samples, num_heads, num_queries, num_keys) if mask.dim() == _BATCHED else mask
    return _Given(tensors, padding, mask, is_causal=False)


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an additive mask for the attention scores."""
    return mask if mask.is_floating_point() else torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.bool(), -torch.inf)


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: _Given, heads: Columns, dropped: float, *, need_weights: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the output of this rank's heads, (N, h, L, d), and if needed their attention weights, (N, h, L, S)."""
    padding = None if given.padding is None else copy(given.padding, heads)
    mask = given.mask
    if mask is not None:
        mask = split(mask, heads, 1) if mask.dim() > _BATCHED else copy(mask, heads)
    masks = [one for one in (mask, padding) if one is not None]
    added = sum(masks[1:], masks[0]) if masks else None
    num_samples, _, num_queries, size = q.shape
    of_all = (num_samples, heads.total_size, num_queries, k.shape[2])
    if need_weights:
        products = (q * math.sqrt(1.0 / size)) @ k.transpose(-2, -1)
        seen = (products if added is None else products + added).softmax(-1)
        if dropped:  # as one process draws, for all heads
            ones = seen.new_ones((of_all[0] * of_all[1], *of_all[2:]))
            seen = seen * heads.own(nn.functional.dropout(ones, dropped).view(of_all), 1)
        return seen @ v, seen
    if not dropped:
        return nn.functional.scaled_dot_product_attention(q, k, v, added, 0.0, given.is_causal), None
    return attention_without(q, k, v, added, dropped, given.is_causal, kept_of(heads, q, k.shape[2], dropped)), None


def _mean(seen: torch.Tensor, heads: Columns) -> torch.Tensor:
    """Return the mean over the heads of all ranks. Collective."""
    precision = precision_for(seen)
    return (reduce(precision.operand(seen).sum(1), heads) / heads.total_size).to(seen.dtype)

"""Rules of operations on several batches, row by row."""

from __future__ import annotations

from typing import Any

import torch

from ..placement_types import GlobalTensor, Shard, from_local
from .dispatch import Rules
from .operands import NeedsFullTensor, at, globals_in, map_result, ndim_of
from .pointwise import fitted


def pairwise(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Distances and similarities of corresponding rows, with broadcasting, along a dim that is not sharded."""
    first, placement = _first_rows(args[:2], (*args[2:], *kwargs.values()))
    from_right, ndim = ndim_of(first) - placement.dim, max(map(ndim_of, args[:2]))
    dim = kwargs.get("dim", args[2] if len(args) > 2 else 1) if func.__name__ == "cosine_similarity" else kwargs.get("dim", -1)
    if dim % ndim == ndim - from_right or "out" in kwargs:
        raise NeedsFullTensor
    result = rules.local(func, (*(fitted(arg, placement, from_right) for arg in args[:2]), *args[2:]), kwargs)
    lost = ndim_of(result) < ndim and dim % ndim < ndim - from_right
    return from_local(result, Shard(ndim - from_right - lost, placement.share, placement.unit))


def paired(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Operations that pair the rows of two operands (``grid_sample``, ``bilinear``); further arguments apply to all rows."""
    _, placement = _first_rows(args[:2], (*args[2:], *kwargs.values()))
    if placement.dim or min(map(ndim_of, args[:2])) < 2:
        raise NeedsFullTensor
    result = rules.local(func, (*(_rows(arg, placement) for arg in args[:2]), *args[2:]), kwargs)
    return map_result(result, lambda t: from_local(t, placement))


def affine_grid(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``affine_grid``, whose ``size`` argument is global."""
    theta, placement = _first_rows(args[:1], kwargs.values())
    size = list(kwargs.get("size", args[1] if len(args) > 1 else ()))
    if placement.dim or ndim_of(theta) != 3 or not size or size[0] != placement.total:
        raise NeedsFullTensor
    own = [placement.loaded.stop - placement.loaded.start, *size[1:]]
    rest = {key: value for key, value in kwargs.items() if key != "size"}
    return from_local(rules.local(func, (theta, own, *args[2:]), rest), placement)


def attention(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``scaled_dot_product_attention`` within samples, without dropout."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    query, mask = given.get("query"), given.pop("attn_mask", None)
    operands = [given.get(name) for name in names[:3]]
    if not isinstance(query, GlobalTensor) or not isinstance(query.placement, Shard) or query.placement.dim or given.get("dropout_p"):
        raise NeedsFullTensor
    placement, ndim = query.placement, ndim_of(query)
    if ndim < 3 or any(not isinstance(t, torch.Tensor) or ndim_of(t) != ndim for t in operands):
        raise NeedsFullTensor
    given.update({name: _rows(t, placement) for name, t in zip(names, operands, strict=False)})
    if mask is not None:
        mask = fitted(mask, placement, ndim)
    return from_local(rules.local(func, (), {**given, "attn_mask": mask}), placement)


def distances(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``cdist``: of the rows ``(B, M)`` to replicated rows, or within each sample of ``(B, P, M)`` to replicated or its own rows."""
    first, placement = _first_rows(args[:2], (*args[2:], *kwargs.values()))
    left, right = args[:2]
    ndim = ndim_of(left)
    mode = kwargs.get("compute_mode", args[3] if len(args) > 3 else _FASTER)
    power = kwargs.get("p", args[2] if len(args) > 2 else 2.0)
    if (
        ndim == 3
        and left is first
        and not isinstance(right, GlobalTensor)
        and not placement.dim
        and right.shape[:-2].numel() == 1
        and ndim_of(right) in (2, 3)
    ):
        return from_local(rules.local(func, (left, right, power, mode), {}), placement)
    if ndim_of(right) != ndim or ndim not in (2, 3) or placement.dim:
        raise NeedsFullTensor
    if ndim == 3:
        return from_local(rules.local(func, (_rows(left, placement), _rows(right, placement), power, mode), {}), placement)
    if len(globals_in((left, right))) > 1:
        raise NeedsFullTensor  # distances between all samples
    if mode == _FASTER:  # PyTorch chooses by the number of rows, and the modes round differently: choose by the global number
        most = max(placement.total, *((arg.shape[0]) for arg in (left, right) if not isinstance(arg, GlobalTensor)))
        mode = "use_mm_for_euclid_dist" if most > 25 else "donot_use_mm_for_euclid_dist"
    found = rules.local(func, (left, right, power, mode), {})
    return from_local(found, Shard(int(isinstance(right, GlobalTensor)), placement.share, placement.unit))


_FASTER = "use_mm_for_euclid_dist_if_necessary"


def outer(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``outer`` of a sharded and a replicated vector."""
    _, placement = _first_rows(args[:2], kwargs.values())
    if len(args) != 2 or kwargs or len(globals_in(args)) != 1:
        raise NeedsFullTensor
    return from_local(rules.local(func, args, {}), Shard(int(isinstance(args[1], GlobalTensor)), placement.share, placement.unit))


def _first_rows(operands: tuple[Any, ...], others: Any) -> tuple[GlobalTensor, Shard]:
    """Return the first global operand and its placement. NeedsFullTensor if it is no shard, or if `others` has global tensors."""
    first = next((operand for operand in operands if isinstance(operand, GlobalTensor)), None)
    if first is None or not isinstance(first.placement, Shard) or globals_in(others):
        raise NeedsFullTensor
    if not all(isinstance(operand, torch.Tensor) for operand in operands):
        raise NeedsFullTensor
    return first, first.placement


def _rows(value: Any, placement: Shard) -> Any:
    """Return the rank's rows of an operand that has one row per sample."""
    if isinstance(value, GlobalTensor):
        if value.placement != placement:
            raise NeedsFullTensor
        return value
    if value.shape[0] != placement.total:
        raise NeedsFullTensor
    return value[at(0, placement.loaded)]

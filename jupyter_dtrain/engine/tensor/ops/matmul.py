"""Rules of operations that treat each sample by itself: layers, products with a matrix, embeddings, linear algebra."""

from __future__ import annotations

import string
from typing import Any

import torch
import torch.nn.functional as F

from ..functional_collectives import nothing_of
from ..placement_types import GlobalTensor, Partial, Shard, from_local
from .dispatch import Rules
from .operands import NeedsFullTensor, at, changes_in_place, globals_in, map_result, ndim_of, tensors_in


def rowwise(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Operations that treat each row of dim 0 by itself; replicated operands (weights) apply to all rows."""
    first = args[0] if args else None
    if not isinstance(first, GlobalTensor) or not isinstance(first.placement, Shard) or first.placement.dim != 0 or ndim_of(first) < 2:
        raise NeedsFullTensor
    if ndim_of(first) < _MIN_DIMS.get(func.__name__, 2) or _reaches_rows(func, ndim_of(first), args, kwargs):
        raise NeedsFullTensor
    rest = [t for t in (*tensors_in(args[1:]), *tensors_in(kwargs.values())) if isinstance(t, GlobalTensor)]
    if rest:
        raise NeedsFullTensor
    result = rules.local(func, args, kwargs)
    placement = first.placement
    return map_result(result, lambda t: from_local(t, placement))


_MIN_DIMS = {  # with one dim less, PyTorch takes dim 0 for the channels
    **{f"conv{n}d": n + 2 for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": n + 2 for n in (1, 2, 3)},
    "adaptive_avg_pool3d": 4,
    "unfold": 4,
    "fold": 3,
    "pixel_shuffle": 4,
    "pixel_unshuffle": 4,
    "local_response_norm": 3,
    "lp_pool1d": 3,
    "lp_pool2d": 4,
    "channel_shuffle": 3,
}


def _reaches_rows(func: Any, ndim: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an operation mixes the rows: it works along all dims, or takes statistics of the batch."""
    if func.__name__ == "pad":
        return len(kwargs.get("pad", args[1] if len(args) > 1 else ())) >= 2 * ndim
    if func.__name__ == "batch_norm":
        return bool(kwargs.get("training", args[5] if len(args) > 5 else False))
    if func in _NORMALIZE_LAST:
        return len(kwargs.get("normalized_shape", args[1] if len(args) > 1 else ())) >= ndim
    return False


def instance_norm(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``instance_norm``: row by row; running statistics are a mean over rows, so the shards' means are averaged by an all-reduce."""
    given = {**dict(zip(_INSTANCE_NORM, args, strict=False)), **kwargs}
    running = [given[name] for name in ("running_mean", "running_var") if given.get(name) is not None]
    if not running or not given.get("use_input_stats", True):
        return rowwise(rules, func, args, kwargs)
    own = {name: given[name].clone() for name in ("running_mean", "running_var") if given.get(name) is not None}
    rest = {name: value for name, value in given.items() if name != "input"}
    result = rowwise(rules, func, (given["input"],), {**rest, **own})
    placement = result.placement
    assert isinstance(placement, Shard)
    rows = placement.loaded.stop - placement.loaded.start if placement.counts else 0
    together = rules.exchange.total(torch.cat([*own.values()]).detach() * (rows / placement.total))
    with torch.no_grad():
        for tensor, value in zip(running, together.split([tensor.numel() for tensor in running]), strict=True):
            tensor.copy_(value)
    return result


_INSTANCE_NORM = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
_NORMALIZE_LAST = frozenset((F.layer_norm, F.rms_norm, torch.rms_norm))


def lookup(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Look-ups row by row as in :func:`rowwise`, also of 1-dim tensors (indices of an embedding, classes to encode)."""
    first = args[0]
    if not isinstance(first, GlobalTensor) or not isinstance(first.placement, Shard) or globals_in((*args[1:], *kwargs.values())):
        raise NeedsFullTensor
    if func.__name__ == "embedding_bag" and (ndim_of(first) != 2 or first.placement.dim):
        raise NeedsFullTensor  # bags of different lengths
    if _max_norm(func, args, kwargs) is not None:
        raise NeedsFullTensor  # it rescales the rows that are looked up, in place
    if func.__name__ == "one_hot" and (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) < 0:
        raise NeedsFullTensor  # the number of classes depends on the data
    placement = first.placement
    return map_result(rules.local(func, args, kwargs), lambda t: from_local(t, placement))


def _max_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the ``max_norm`` argument, ``None`` if there is none."""
    position = 3 if func.__name__ in ("embedding", "embedding_bag") else len(args)
    return kwargs.get("max_norm", args[position] if len(args) > position else None)


def einsum(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``einsum`` in which the sharded dim has one letter: the result is a shard along it, or partial if it is summed over."""
    equation, *rest = args
    operands = list(rest[0]) if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest
    terms, arrow, result = equation.replace(" ", "").partition("->") if isinstance(equation, str) else ("", "", "")
    inputs = terms.split(",")
    if not arrow or len(inputs) != len(operands) or kwargs:
        raise NeedsFullTensor
    inputs, result = _spelled_out(inputs, result, operands)
    placements = {tensor.placement for tensor in operands if isinstance(tensor, GlobalTensor)}
    shards = [(term, t.placement) for term, t in zip(inputs, operands, strict=True) if isinstance(t, GlobalTensor)]
    if any(not isinstance(placement, Shard) or placement.unit != 1 for placement in placements):
        raise NeedsFullTensor
    letters = {term[placement.dim] for term, placement in shards if isinstance(placement, Shard) and placement.dim < len(term)}
    placement = shards[0][1]
    assert isinstance(placement, Shard)
    if len(letters) != 1 or len({p.share for p in placements if isinstance(p, Shard)}) != 1:
        raise NeedsFullTensor
    (letter,) = letters
    own = []
    for term, tensor in zip(inputs, operands, strict=True):
        if term.count(letter) > 1 or (isinstance(tensor, GlobalTensor) and letter not in term):
            raise NeedsFullTensor
        if letter in term and not isinstance(tensor, GlobalTensor):
            dim = term.index(letter)
            if len(term) != tensor.dim() or tensor.shape[dim] != placement.total:
                raise NeedsFullTensor
            tensor = tensor[at(dim, placement.loaded)]
        own.append(tensor)
    found = rules.local(func, (f"{','.join(inputs)}->{result}", *own), {})
    if letter in result:
        return from_local(found, Shard(result.index(letter), placement.share))
    return from_local(found if placement.counts else nothing_of(found), Partial())


def _spelled_out(terms: list[str], result: str, operands: list[Any]) -> tuple[list[str], str]:
    """Return the terms of an equation and its result with letters in place of ``...``."""
    counts = {ndim_of(t) - len(term.replace("...", "")) for term, t in zip(terms, operands, strict=True) if "..." in term}
    if not counts:
        return terms, result
    free = [letter for letter in string.ascii_letters if letter not in "".join(terms) + result]
    if len(counts) > 1 or not 0 <= min(counts) <= len(free):
        raise NeedsFullTensor  # operands with fewer dims are broadcast
    dots = "".join(free[: min(counts)])
    return [term.replace("...", dots) for term in terms], result.replace("...", dots)


def matrices(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Linear algebra on a batch of matrices ``(B, …, M, N)``, matrix by matrix."""
    first = args[0] if args else None
    if func.__name__ == "linalg_solve_triangular" and len(args) == 2 and not isinstance(first, GlobalTensor):
        return _solved_by_one(rules, first, args[1], kwargs)
    operands = tensors_in((*args, *kwargs.values()))
    if not isinstance(first, GlobalTensor) or not isinstance(first.placement, Shard) or first.placement.dim or "out" in kwargs:
        raise NeedsFullTensor
    for tensor in operands:
        if not isinstance(tensor, GlobalTensor) or tensor.placement != first.placement or ndim_of(tensor) < 3:
            raise NeedsFullTensor
    if len({ndim_of(tensor) for tensor in operands}) > 1:
        raise NeedsFullTensor
    placement = first.placement
    return map_result(rules.local(func, args, kwargs), lambda t: from_local(t, placement))


def _solved_by_one(rules: Rules, matrix: Any, sides: Any, kwargs: dict[str, Any]) -> Any:
    """``solve_triangular`` with one replicated matrix (as of a ``MultivariateNormal``) and a batch of right-hand sides."""
    placement, ndim = sides.placement, ndim_of(sides)
    if not isinstance(placement, Shard) or matrix.shape[:-2].numel() != 1 or ndim < max(matrix.dim(), 2) or not kwargs.get("left", True):
        raise NeedsFullTensor
    if placement.dim == ndim - 2 or "out" in kwargs:
        raise NeedsFullTensor
    return from_local(rules.local(torch.linalg.solve_triangular, (matrix, sides), kwargs), placement)


def addmm(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``addmm``: add the product of a shard's rows and a replicated matrix to rows of the same batch, or to a vector for all rows."""
    if len(args) != 3:
        raise NeedsFullTensor
    first, rows, matrix = args
    if (
        not isinstance(rows, GlobalTensor)
        or not isinstance(rows.placement, Shard)
        or rows.placement.dim
        or isinstance(matrix, GlobalTensor)
    ):
        raise NeedsFullTensor
    if isinstance(first, GlobalTensor):
        if first.placement != rows.placement or ndim_of(first) != 2:
            raise NeedsFullTensor
    elif first.dim() > 1 or changes_in_place(func):
        raise NeedsFullTensor
    result = rules.local(func, args, kwargs)
    return result if result is first else from_local(result, rows.placement)


def product(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Matrix products: a shard's rows times a replicated matrix, a replicated matrix times a shard's columns, or batches of matrices."""
    if len(args) != 2 or kwargs:
        raise NeedsFullTensor
    left, right = args
    if not isinstance(left, GlobalTensor):
        return _columns(rules, func, left, right)
    if not isinstance(left.placement, Shard) or left.placement.dim != 0 or ndim_of(left) < 2:
        raise NeedsFullTensor
    placement = left.placement
    if isinstance(right, GlobalTensor):
        if right.placement != placement or ndim_of(left) != ndim_of(right) or ndim_of(left) < 3:
            raise NeedsFullTensor
    elif not isinstance(right, torch.Tensor):
        raise NeedsFullTensor
    elif right.dim() > 2:
        right = _matrices_for(left, right, placement)
    return from_local(rules.local(func, (left, right), {}), placement)


def _matrices_for(shard: GlobalTensor, matrices: torch.Tensor, placement: Shard) -> torch.Tensor:
    """Return the rank's part of a replicated batch of matrices that is multiplied with a shard's matrices."""
    if matrices.dim() > ndim_of(shard):
        raise NeedsFullTensor
    if matrices.dim() < ndim_of(shard) or matrices.shape[0] == 1:
        return matrices
    if matrices.shape[0] != placement.total:
        raise NeedsFullTensor
    return matrices[placement.loaded]


def _columns(rules: Rules, func: Any, left: Any, right: GlobalTensor) -> Any:
    """Multiply a replicated operand by the columns of a shard, or by its matrices."""
    placement, ndim = right.placement, ndim_of(right)
    if not isinstance(left, torch.Tensor) or not isinstance(placement, Shard) or left.dim() == 0:
        raise NeedsFullTensor
    if ndim == 2 and placement.dim == 1 and left.dim() <= 2:
        return from_local(rules.local(func, (left, right), {}), Shard(left.dim() - 1, placement.share, placement.unit))
    if ndim < 3 or placement.dim:
        raise NeedsFullTensor
    left = _matrices_for(right, left, placement) if left.dim() > 2 else left
    return from_local(rules.local(func, (left, right), {}), placement)

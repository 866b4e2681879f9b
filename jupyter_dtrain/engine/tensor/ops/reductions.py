"""Rules of operations along dims: sums, means, softmax, sorting, and others that leave the batch dim alone."""

from __future__ import annotations

from typing import Any

import torch

from ..deferred import DeferredReduction, is_narrow, keep_later, may_wait
from ..functional_collectives import nothing_of, weigh
from ..placement_types import GlobalTensor, Partial, Shard, from_local
from .dispatch import Rules
from .operands import NeedsFullTensor, dims_of, map_result, ndim_of, tensors_in, the_shard
from .pointwise import elementwise, keeps


def along(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Operations along dims that keep the order of the others (softmax, sort, argmax): on parts, unless a dim is the sharded one."""
    tensor, placement = the_shard(args, kwargs)
    ndim = ndim_of(tensor)
    dims = dims_of(args, kwargs, ndim, _DIM_POSITION.get(func.__name__, 1))
    if dims is None:
        dims = _DEFAULT_DIM.get(func.__name__)
        if dims is None:
            raise NeedsFullTensor
        dims = tuple(dim % ndim for dim in dims)
    if placement.dim in dims:
        raise NeedsFullTensor
    result = rules.local(func, args, kwargs)

    def wrap(value: torch.Tensor) -> torch.Tensor:
        lost = 0 if value.dim() == ndim else sum(dim < placement.dim for dim in dims)
        return from_local(value, Shard(placement.dim - lost, placement.share, placement.unit))

    return map_result(result, wrap)


_DIM_POSITION = dict.fromkeys(
    ("topk", "kthvalue", "norm", "linalg_norm", "linalg_vector_norm", "linalg_matrix_norm", "chunk", "split", "tensor_split", "normalize"),
    2,
)
_DEFAULT_DIM: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("topk", "sort", "argsort", "kthvalue", "msort", "glu"), (-1,)),
    **dict.fromkeys(("chunk", "split", "tensor_split"), (0,)),
    "linalg_matrix_norm": (-2, -1),
    "normalize": (1,),
}


def quantile(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``quantile`` along a dim that is not sharded. Several quantiles add a dim at the front."""
    tensor, placement = the_shard(args, kwargs)
    ndim = ndim_of(tensor)
    dims = dims_of(args, kwargs, ndim, 2)
    if dims is None or placement.dim in dims:
        raise NeedsFullTensor
    result = rules.local(func, args, kwargs)
    quantiles = kwargs.get("q", args[1] if len(args) > 1 else None)
    more = isinstance(quantiles, torch.Tensor) and quantiles.dim()
    lost = sum(dim < placement.dim for dim in dims) if ndim_of(result) - more < ndim else 0
    return from_local(result, Shard(placement.dim - lost + more, placement.share, placement.unit))


def scatter(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``scatter`` and similar into a shard, along a dim that is not sharded, by an index with the same placement."""
    target, placement = the_shard(args[:1], {})
    if len(args) != 4 or any(isinstance(value, torch.Tensor) for value in kwargs.values()):
        raise NeedsFullTensor
    _, dim, index, source = args
    if not isinstance(index, GlobalTensor) or index.placement != placement or dim % ndim_of(target) == placement.dim:
        raise NeedsFullTensor
    if isinstance(source, GlobalTensor) and source.placement != placement:
        raise NeedsFullTensor
    if isinstance(source, torch.Tensor) and not isinstance(source, GlobalTensor) and source.dim():
        raise NeedsFullTensor
    result = rules.local(func, args, kwargs)
    return result if result is target else from_local(result, placement)


def all_or_any(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``all`` and ``any``; over the batch, the ranks sum the entries that are false or true. That is a collective."""
    tensor, placement = the_shard(args, kwargs)
    dims = dims_of(args, kwargs, ndim_of(tensor))
    if dims is not None and placement.dim not in dims:
        return along(rules, func, args, kwargs)
    result = rules.local(func, args, kwargs)
    if result.dtype != torch.bool or "out" in kwargs:
        raise NeedsFullTensor
    is_any = "any" in func.__name__
    counted = (result if is_any else ~result).long() * int(placement.counts)
    return (rules.exchange.total(counted) > 0) == is_any


def mean(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``mean``: over the batch, the weighted mean of the shards' means (`Partial`)."""
    return _reduction(rules, func, args, kwargs, is_mean=True)


def total(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``sum``: over the batch, the sum of the shards' sums (`Partial`)."""
    return _reduction(rules, func, args, kwargs, is_mean=False)


def _reduction(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_mean: bool) -> Any:
    first = args[0] if args else None
    if isinstance(first, GlobalTensor) and isinstance(first.placement, Partial):
        return keeps(rules, func, args, kwargs)  # sums and means are linear
    tensor, placement = the_shard(args, kwargs)
    if "out" in kwargs:
        raise NeedsFullTensor
    dims = dims_of(args, kwargs, ndim_of(tensor))
    if dims is not None and placement.dim not in dims:
        return along(rules, func, args, kwargs)
    result = rules.local(func, args, kwargs)
    if is_mean:
        reduced = from_local(result, Partial.mean(placement.share))
    else:
        reduced = from_local(result if placement.counts else nothing_of(result), Partial())
    if is_narrow(result) and may_wait(result) and "dtype" not in kwargs:
        part = rules.local(func, args, {**kwargs, "dtype": torch.float64})
        keep_later(
            reduced, DeferredReduction(part=weigh(part, placement.share.weight if is_mean else float(placement.counts)), dtype=result.dtype)
        )
    return reduced


def extreme(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``max`` and ``min``: elementwise with a second tensor, else along a dim; over all entries on the full tensor."""
    if len(args) == 2 and isinstance(args[1], torch.Tensor) and not kwargs:
        return elementwise(rules, func, args, kwargs)
    return along(rules, func, args, kwargs)


def unpack(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``chunk``, ``split`` and ``unbind`` along a dim that is not sharded."""
    return along(rules, func, args, kwargs) if func.__name__ != "unbind" else _unbind(rules, func, args, kwargs)


def _unbind(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if dims_of(args, kwargs, ndim_of(args[0])) is None:
        raise NeedsFullTensor  # along dim 0
    return along(rules, func, args, kwargs)


# Operations along dims that are not sharded: shifts, windows, triangles, Fourier transforms.
#
# A dim may change its size, vanish, or be appended at the end. The batch dim keeps its size.

_LAST, _LAST_TWO, _ALL = (None, "", -1), (None, "", (-2, -1)), None
_DIMS: dict[str, tuple[tuple[int | None, str, Any], ...]] = {  # of each argument that names dims: position, keyword, default
    "unfold": ((1, "dimension", _ALL),),
    "roll": ((2, "dims", _ALL),),
    "diff": ((2, "dim", -1),),
    "trapezoid": ((None, "dim", -1),),
    "trapz": ((None, "dim", -1),),
    "cumulative_trapezoid": ((None, "dim", -1),),
    "diagonal": ((2, "dim1", 0), (3, "dim2", 1)),
    "fliplr": ((None, "", 1),),
    "flipud": ((None, "", 0),),
    "diag_embed": (_LAST,),
    "rot90": ((2, "dims", (0, 1)),),
    "tril": (_LAST_TWO,),
    "triu": (_LAST_TWO,),
    "tril_": (_LAST_TWO,),
    "triu_": (_LAST_TWO,),
    "view_as_complex": (_LAST,),
    "view_as_real": (),
    "index_fill": ((1, "dim", _ALL),),
    "index_fill_": ((1, "dim", _ALL),),
    **{f"fft_{name}": ((2, "dim", -1),) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"fft_{name}2": ((2, "dim", (-2, -1)),) for name in ("fft", "ifft", "rfft", "irfft")},
    **{f"fft_{name}n": ((2, "dim", _ALL),) for name in ("fft", "ifft", "rfft", "irfft")},
    **{f"fft_{name}": ((1, "dim", _ALL),) for name in ("fftshift", "ifftshift")},
}
_LOSE = frozenset(("diagonal", "trapezoid", "trapz"))  # these remove the dims that they work along
_WITH_INDEX = frozenset(("index_fill", "index_fill_"))
NAMES = " ".join(name for name in _DIMS if not name.startswith("fft_"))
FFT_NAMES = " ".join(name.removeprefix("fft_") for name in _DIMS if name.startswith("fft_"))


def inner(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation of `_DIMS` on parts, unless it works along the sharded dim."""
    tensor, placement = the_shard(args, kwargs)
    name = func.__name__
    if "out" in kwargs or (name not in _WITH_INDEX and tensors_in((*args[1:], *kwargs.values()))):
        raise NeedsFullTensor
    if name == "diag_embed" and (len(args) > 1 or kwargs):
        raise NeedsFullTensor
    ndim = ndim_of(tensor)
    touched: list[int] = []
    for position, keyword, default in _DIMS[name]:
        given = kwargs.get(keyword, args[position] if position is not None and len(args) > position else default)
        values = (given,) if isinstance(given, int) else given
        if not isinstance(values, list | tuple) or any(not -ndim <= value < ndim for value in values):
            raise NeedsFullTensor  # all dims, or invalid dims: PyTorch's own error
        touched += [value % ndim for value in values]
    if placement.dim in touched:
        raise NeedsFullTensor
    result = rules.local(func, args, kwargs)
    if result is tensor:
        return result
    lost = sum(dim < placement.dim for dim in touched) if name in _LOSE else 0
    return from_local(result, Shard(placement.dim - lost, placement.share, placement.unit))

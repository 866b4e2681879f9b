"""Rules of indexing: a batch with all rows kept, one entry per row, and a replicated table by the indices in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..placement_types import GlobalTensor, Shard, from_local
from .dispatch import Rules
from .operands import NeedsFullTensor, at, globals_in, ndim_of, the_shard


def index(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Index a batch with all rows kept, ``x[:, 3]``, or one entry per row, ``x[torch.arange(len(x)), y]``; also assignment."""
    where = args[1] if isinstance(args[1], tuple) else (args[1],)
    writes = func.__name__ == "__setitem__"
    if not isinstance(args[0], GlobalTensor):
        if writes:
            raise NeedsFullTensor
        return _from_table(rules, args[0], where)
    tensor, placement = the_shard(args[:1], {})
    if writes and len(where) == 1 and _is_mask(where[0], tensor) and not (isinstance(args[2], torch.Tensor) and ndim_of(args[2])):
        return rules.local(func, args, kwargs)
    if placement.dim != 0 or not where:
        raise NeedsFullTensor
    more = next((position for position, item in enumerate(where) if item is not None), len(where))  # dims of size 1 at the front
    where = where[more:] or (slice(None),)
    all_rows = _all_rows(where[0], placement)
    if more and (writes or not all_rows):
        raise NeedsFullTensor
    local = _in_each_row(where, ndim_of(tensor)) if all_rows else _of_each_row(where, placement)
    if not writes:
        own = (*(None,) * more, *local)
        return from_local(rules.local(func, (tensor, own), {}), Shard(more, placement.share, placement.unit) if more else placement)
    return rules.local(func, (tensor, local, _value(args[2], tensor, local, placement)), {})


def _value(value: Any, tensor: GlobalTensor, local: tuple[Any, ...], placement: Shard) -> Any:
    """Return the rank's part of a value that the cell assigns to an index of a batch."""
    if not isinstance(value, torch.Tensor) or not (ndim := ndim_of(value)):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        wanted = tensor[local].dim()
    if isinstance(value, GlobalTensor):
        if value.placement != placement or ndim != wanted:
            raise NeedsFullTensor
    elif ndim == wanted and value.shape[0] == placement.total:
        return value[placement.loaded]
    elif ndim >= wanted and value.shape[0] != 1:
        raise NeedsFullTensor
    return value


def _is_mask(item: Any, tensor: GlobalTensor) -> bool:
    """Return whether `item` is a boolean mask of `tensor` with the same placement."""
    if not isinstance(item, GlobalTensor) or item.placement != tensor.placement or ndim_of(item) > ndim_of(tensor):
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return item.dtype == torch.bool


def _all_rows(item: Any, placement: Shard) -> bool:
    if item is Ellipsis:
        return True
    return isinstance(item, slice) and item.indices(placement.total) == (0, placement.total, 1)


def _in_each_row(where: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """Return the index into a shard for an index that keeps all rows and takes the same entries of each."""
    first, *rest = where
    if globals_in(rest):
        raise NeedsFullTensor
    lists = [position for position, item in enumerate(rest) if not isinstance(item, int | slice) and item is not None and item is not ...]
    for position in lists:
        item = rest[position]
        flat = isinstance(item, list | range) and all(type(number) in (int, bool) for number in item)
        if not flat and type(item) is not torch.Tensor:
            raise NeedsFullTensor
    if lists and lists[-1] - lists[0] + 1 != len(lists):
        raise NeedsFullTensor  # advanced indices apart from each other: their dims go to the front
    if any(isinstance(item, bool) for item in rest):
        raise NeedsFullTensor
    if first is Ellipsis and sum(map(_num_dims, rest)) >= ndim:
        raise NeedsFullTensor  # the ellipsis stands for no dim
    return (slice(None) if isinstance(first, slice) else first, *rest)


def _num_dims(item: Any) -> int:
    """Return the number of dims that an item of an index consumes."""
    if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
        return item.dim()
    return int(item is not None and item is not ...)


def _of_each_row(where: tuple[Any, ...], placement: Shard) -> tuple[Any, ...]:
    """Return the index into a shard for ``x[torch.arange(len(x)), y]``: one entry, or several, per row."""
    if len(where) == 1:
        raise NeedsFullTensor  # a permutation of samples: it may be the identity in some batches, but placements must not depend on values
    rows = _numbers(where[0])
    if rows is None or rows.numel() != rows.shape[0] or not torch.equal(rows.flatten(), _all_numbers(rows, placement.total)):
        raise NeedsFullTensor
    size = placement.loaded.stop - placement.loaded.start
    own = torch.arange(size, device=rows.device).view(size, *rows.shape[1:])
    return (own, *_aligned(where[1:], placement, 0, rows.dim()))


def _aligned(items: Sequence[Any], placement: Shard, dim: int, ndim: int) -> list[Any]:
    """Return `items` of an index for the rank's part; their tensors have `ndim` dims and the batch along `dim`."""
    found = []
    for item in items:
        if isinstance(item, GlobalTensor):
            if item.placement != placement or ndim_of(item) != ndim or not _is_integer(item):
                raise NeedsFullTensor
        elif isinstance(item, bool) or not (isinstance(item, int | slice) or item is None or item is Ellipsis):
            numbers = _numbers(item)
            if numbers is None or numbers.dim() > ndim:
                raise NeedsFullTensor
            behind = numbers.dim() - ndim + dim
            if behind >= 0 and numbers.shape[behind] != 1:
                if numbers.shape[behind] != placement.total:
                    raise NeedsFullTensor
                numbers = numbers[at(behind, placement.loaded)]
            item = numbers
        found.append(item)
    return found


def _from_table(rules: Rules, table: Any, where: tuple[Any, ...]) -> Any:
    """Return rows or entries of a replicated tensor by the indices in a batch: ``centers[y]``."""
    shards = [item for item in where if isinstance(item, GlobalTensor)]
    if not shards or not isinstance(table, torch.Tensor) or any(item is None or item is Ellipsis for item in where):
        raise NeedsFullTensor
    placement, ndim = shards[0].placement, ndim_of(shards[0])
    if not isinstance(placement, Shard) or any(item.placement != placement for item in shards):
        raise NeedsFullTensor
    own = _aligned(where, placement, placement.dim, ndim)
    kinds = [isinstance(item, torch.Tensor) for item in own if not isinstance(item, int)]
    first, last = kinds.index(True), len(kinds) - kinds[::-1].index(True)
    before = first if all(kinds[first:last]) else 0  # dims of indices apart from each other go to the front
    found = rules.local(torch.Tensor.__getitem__, (table, tuple(own)), {})
    return from_local(found, Shard(before + placement.dim, placement.share, placement.unit))


_LOOKED_UP = {"bucketize": (0, "input"), "isin": (0, "elements"), "take": (1, "index"), "searchsorted": (1, "input")}


def look_up(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Look up each entry of a batch in a replicated tensor (``bucketize``, ``isin``, ``take``) or in its own row (``searchsorted``)."""
    operands = globals_in((*args, *kwargs.values()))
    if "out" in kwargs or "out_int32" in kwargs or "sorter" in kwargs:
        raise NeedsFullTensor
    position, keyword = _LOOKED_UP[func.__name__]
    entries = args[position] if len(args) > position else kwargs.get(keyword)
    first = args[0] if args else None
    if not isinstance(entries, GlobalTensor) or not isinstance(entries.placement, Shard):
        raise NeedsFullTensor
    if func.__name__ == "searchsorted" and not (isinstance(first, torch.Tensor) and ndim_of(first) == 1 and len(operands) == 1):
        if len(operands) != 2 or not isinstance(first, GlobalTensor) or first.placement != entries.placement or entries.placement.dim:
            raise NeedsFullTensor
        if ndim_of(first) != ndim_of(entries) or ndim_of(first) < 2:
            raise NeedsFullTensor
    elif len(operands) != 1:
        raise NeedsFullTensor
    return from_local(rules.local(func, args, kwargs), entries.placement)


def select(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``index_select``: of a batch along a dim that is not sharded, or of a replicated tensor by the indices in a batch."""
    names = ("input", "dim", "index")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    source, dim, numbers = (given.get(name) for name in names)
    if len(given) != len(names) or not isinstance(source, torch.Tensor) or not isinstance(dim, int):
        raise NeedsFullTensor
    dim %= ndim_of(source) or 1
    if isinstance(source, GlobalTensor):
        if isinstance(numbers, GlobalTensor) or not isinstance(source.placement, Shard) or source.placement.dim == dim:
            raise NeedsFullTensor
        return from_local(rules.local(func, args, kwargs), source.placement)
    if not isinstance(numbers, GlobalTensor) or not isinstance(numbers.placement, Shard):
        raise NeedsFullTensor
    return from_local(rules.local(func, args, kwargs), Shard(dim, numbers.placement.share, numbers.placement.unit))


def gather(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``gather`` and ``take_along_dim``: of each row by its own indices, or of a replicated tensor by the indices in a batch."""
    names = ("input", "dim", "index") if func.__name__ == "gather" else ("input", "indices", "dim")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    source, dim, numbers = given.get("input"), given.get("dim"), given.get("index", given.get("indices"))
    if len(given) != 3 or not isinstance(dim, int) or not isinstance(source, torch.Tensor) or not isinstance(numbers, torch.Tensor):
        raise NeedsFullTensor
    shards = globals_in((source, numbers))
    placement, ndim = shards[0].placement, ndim_of(source)
    if not isinstance(placement, Shard) or any(t.placement != placement for t in shards) or ndim_of(numbers) != ndim:
        raise NeedsFullTensor
    if dim % ndim != placement.dim:
        source, numbers = _cut(source, placement), _cut(numbers, placement)
    elif source is shards[0]:
        raise NeedsFullTensor
    return from_local(rules.local(func, (source, dim, numbers) if func.__name__ == "gather" else (source, numbers, dim), {}), placement)


def _cut(value: torch.Tensor, placement: Shard) -> torch.Tensor:
    """Return the rank's part of an operand that has one entry per entry of the sharded dim."""
    if isinstance(value, GlobalTensor):
        return value
    if value.shape[placement.dim] != placement.total:
        raise NeedsFullTensor
    return value[at(placement.dim, placement.loaded)]


def _numbers(item: Any) -> torch.Tensor | None:
    """Return `item` as a tensor of integer indices, ``None`` if it is none."""
    if isinstance(item, list | range) and all(type(number) is int for number in item) and len(item):
        return torch.tensor(item, device="cpu")
    return item if type(item) is torch.Tensor and item.dim() and _is_integer(item) else None


def _all_numbers(like: torch.Tensor, total: int) -> torch.Tensor:
    return torch.arange(total, dtype=like.dtype, device=like.device)


def _is_integer(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.dtype in (torch.int64, torch.int32)

"""Whether a model sorts samples that are in order already, by chance: results cannot show then what depends on their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

_SORTS = frozenset(("argsort", "sort"))
_MOST = 1 << 16  # most elements that are compared


class Order(NamedTuple):
    """The indices by which an operation sorts, and the dim along which."""

    indices: torch.Tensor
    dim: int


class _Operation(Protocol):
    @property
    def order(self) -> Order | None: ...


class _Flow(Protocol):
    """The operations of a call on some samples."""

    samples: slice
    number: int

    @property
    def operations(self) -> Sequence[_Operation]: ...


def order_of(name: str, taken: Any, made: Any) -> Order | None:
    """Return the order that an operation has found, given its arguments and its result; ``None`` if it does not sort."""
    if name not in _SORTS:
        return None
    (tensor, *others), given = taken
    indices = made if name == "argsort" else made[1] if isinstance(made, tuple) else None
    if not isinstance(tensor, torch.Tensor) or not isinstance(indices, torch.Tensor) or not indices.dim() or indices.numel() > _MOST:
        return None
    dim = given.get("dim", next((value for value in others if isinstance(value, int) and not isinstance(value, bool)), -1))
    return Order(indices.detach().clone(), dim % indices.dim())


def is_unsure(one: _Flow, other: _Flow) -> bool:
    """Return whether samples are sorted in two calls on different numbers of them, and the order of the fewer is the same in both."""
    if one.number < other.number:
        return is_unsure(other, one)
    start = other.samples.start - one.samples.start
    for mine, others in zip(one.operations, other.operations, strict=False):
        if mine.order is not None and others.order is not None:
            whole, some, dim = mine.order.indices, others.order.indices, mine.order.dim
            if (whole.shape[dim], some.shape[dim]) == (one.number, other.number) and 0 <= start <= one.number - other.number:
                return torch.equal(whole.narrow(dim, start, other.number), some + start)
    return False

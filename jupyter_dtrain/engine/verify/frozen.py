"""Copies of the results and side effects of a call, to compare them with those of another call."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...serialization.python_reducers import attribute_holders
from ..tensor.deferred import later_of
from ..tensor.placement_types import GlobalTensor, Partial, Placement, Shard, to_local

Frozen = Any
ABSENT = ("absent",)
_DEEPEST = 8
_CLOSE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 1e-4, torch.complex64: 1e-4}
"""Largest difference, relative to the largest value, between results that are computed in another order."""
_CLOSE_ELSEWHERE = 3e-2


@dataclass(frozen=True)
class Part:
    """A rank's part of a global tensor. `placement` is ``None`` if its value is not known without the other ranks."""

    tensor: torch.Tensor
    placement: Placement | None


class Freezer:
    """Makes copies of values that do not change.

    Parameters
    ----------
    numbers : mapping of int to int
        Numbers of objects that existed before, by ``id``: a copy refers to these, without their contents.
    """

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self._numbers = numbers

    @staticmethod
    def name(key: object) -> str:
        """Return a name for a key, equal for keys with the same meaning."""
        plain = (int, float, str, bytes, bool, type(None))
        if isinstance(key, plain) or (isinstance(key, tuple) and all(isinstance(part, plain) for part in key)):
            return repr(key)
        return f"a {type(key).__name__}"

    def frozen(self, value: Any, depth: int = 0) -> Frozen:
        """Return a copy of `value`."""
        match value:
            case GlobalTensor():
                known = None if later_of(value) is not None else value.placement
                return Part(to_local(value).detach().clone(), known)
            case torch.Tensor():
                return value.detach().clone()
            case np.ndarray():
                return value.copy()
            case None | bool() | int() | float() | complex() | str() | bytes():
                return value
        if (number := self._numbers.get(id(value))) is not None and depth > 0:
            return ("object", number)
        if depth > _DEEPEST:
            return ("deep",)
        match value:
            case Mapping():
                return {self.name(key): self.frozen(item, depth + 1) for key, item in value.items()}
            case list() | tuple() | deque() | array():
                return [self.frozen(item, depth + 1) for item in value]
            case set() | frozenset():
                return ("set", sorted(self.name(item) for item in value))
            case bytearray():
                return bytes(value)
        if isinstance(value, np.generic):
            return value.item()
        if callable(value):
            return ("object", type(value).__qualname__)
        held = [self.frozen(dict(attributes.items()), depth + 1) for attributes in attribute_holders(value)]
        return ("object", type(value).__qualname__, held)


def apart(whole: Frozen, found: Frozen, sums: dict[str, torch.Tensor] | None = None, name: str = "") -> bool:
    """Return whether `found`, computed by all ranks together, differs from `whole`, computed by one alone.

    Parameters
    ----------
    whole, found : object
        Copies by :class:`Freezer`.
    sums : dict of str to torch.Tensor, optional
        Filled with this rank's parts of values that only a sum over the ranks gives; ``None``: these are not compared.
    name : str
        Name of the value, for `sums`.
    """
    if isinstance(found, Part):
        return isinstance(whole, torch.Tensor) and _part_is_apart(whole, found, sums, name)
    if isinstance(whole, np.ndarray) and isinstance(found, np.ndarray):
        if whole.dtype == object or whole.dtype.kind not in "biufc":
            return bool(whole.shape != found.shape)
        return bool(whole.dtype != found.dtype) or far(torch.from_numpy(np.array(whole)), torch.from_numpy(np.array(found)))
    if isinstance(whole, torch.Tensor) and isinstance(found, torch.Tensor):
        return far(whole, found)
    if isinstance(whole, float) and isinstance(found, float):
        return far(*(torch.tensor(number, dtype=torch.float64, device="cpu") for number in (whole, found)), close=1e-4)
    if type(whole) is not type(found):
        return not (isinstance(whole, int | float) and isinstance(found, int | float) and whole == found)
    if isinstance(whole, dict):
        if list(whole) != list(found) and sorted(whole) != sorted(found):
            return True
        return any(apart(whole[key], found[key], sums, f"{name}.{key}") for key in whole)
    if isinstance(whole, list | tuple):
        return len(whole) != len(found) or any(
            apart(*both, sums, f"{name}.{number}") for number, both in enumerate(zip(whole, found, strict=True))
        )
    return bool(whole != found)


def _part_is_apart(whole: torch.Tensor, found: Part, sums: dict[str, torch.Tensor] | None, name: str) -> bool:
    match found.placement:
        case Shard() as placement:
            if placement.dim >= whole.dim() or whole.shape[placement.dim] != placement.total:
                return True
            if not placement.counts:
                return False
            own = placement.loaded
            return far(whole.narrow(placement.dim, own.start, own.stop - own.start), found.tensor, like=whole)
        case Partial() as placement if sums is not None and found.tensor.numel() <= _FEW:
            weight = 1.0 if placement.weight is None else placement.weight
            sums[name] = found.tensor * weight if weight else torch.zeros_like(found.tensor)
    return False


_FEW = 4096


def far(whole: torch.Tensor, found: torch.Tensor, *, like: torch.Tensor | None = None, close: float | None = None) -> bool:
    """Return whether two tensors differ by more than rounding, relative to the largest value in `like`."""
    if whole.shape != found.shape or whole.layout != found.layout:
        return True
    if whole.layout != torch.strided:
        return far(whole.to_dense(), found.to_dense(), close=close)
    if whole.is_quantized or not whole.numel():
        return False
    if not (whole.is_floating_point() or whole.is_complex()):
        return not torch.equal(whole, found.to(whole.dtype))
    if close is None:
        close = max(_CLOSE.get(kind, _CLOSE_ELSEWHERE) for kind in (whole.dtype, found.dtype))
    largest = (whole if like is None else like).abs().nan_to_num(0.0, 0.0, 0.0).max().item()
    kind = torch.promote_types(whole.dtype, found.dtype)
    return not torch.allclose(whole.to(kind), found.to(kind), rtol=0.0, atol=max(largest * close, 1e-300), equal_nan=True)


def sums_are_apart(of_ranks: Sequence[dict[str, torch.Tensor]], wholes: Callable[[str], torch.Tensor | None]) -> str | None:
    """Return the name of a sum over the ranks that differs from the full value, if there is one."""
    for name in of_ranks[0]:
        whole = wholes(name)
        if whole is not None and all(name in part for part in of_ranks):
            total = torch.stack([part[name] for part in of_ranks]).sum(0)
            if far(whole, total.view(whole.shape) if total.numel() == whole.numel() else total):
                return name
    return None


def as_tensor(value: Frozen) -> torch.Tensor | None:
    """Return a number or a tensor as a tensor, ``None`` for anything else."""
    return value if isinstance(value, torch.Tensor) else torch.tensor(value) if isinstance(value, int | float) else None

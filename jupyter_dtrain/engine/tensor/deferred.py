"""What the cell computes from values whose parts are on several ranks, computed when one of them is read.

An accuracy in float32 is a count over a number, rounded once. Were it rounded on every rank, and added up then, its last digit would depend
on the number of engines; and so would that of a sum of such values, which is rounded at each addition. So sums and multiples of partial
values are noted, and done again on the whole values, in the cell's order and types, when the first of them is read: one exchange for all.
Values with a gradient are not: their graph is made of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .placement_types import GlobalTensor, is_followed
from .versions import version_of

MOST_PENDING = 500
"""Operations and parts that wait for an exchange: one more, and it takes place."""
_NARROW = frozenset((torch.float32, torch.float16, torch.bfloat16))
_DEVICES = frozenset(("cpu", "cuda"))  # others may have no float64


class DeferredReduction:
    """A value that all ranks will have.

    Parameters
    ----------
    compute : callable, optional
        Makes it of the `operands`, of which those that are a `DeferredReduction` are replaced by their values.
    part : torch.Tensor, optional
        The rank's part of a sum, in float64, for a value of type `dtype`.
    """

    __slots__ = ("_compute", "_dtype", "_operands", "_part", "num_pending", "value")

    def __init__(
        self,
        compute: Callable[..., torch.Tensor] | None = None,
        operands: Sequence[Any] = (),
        *,
        part: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self._compute, self._operands = compute, tuple(operands)
        self._part, self._dtype = part, dtype
        self.value: torch.Tensor | None = None
        before = [operand.num_pending for operand in self._operands if isinstance(operand, DeferredReduction) and operand.value is None]
        self.num_pending: int = sum(before) + 1

    def resolve(self, all_sum: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the value. A collective: every rank calls it at the same place.

        Parameters
        ----------
        all_sum : callable
            Returns the sum of what the ranks give it.
        """
        if self.value is None:
            pending = self._pending()
            parts = [(later, later._part) for later in pending if later._part is not None]
            for device in dict.fromkeys(part.device for _, part in parts):
                there = [(later, part) for later, part in parts if part.device == device]
                sums = all_sum(torch.cat([part.reshape(-1) for _, part in there])).split([part.numel() for _, part in there])
                for (later, part), whole in zip(there, sums, strict=True):
                    later._become(whole.view(part.shape).to(later._dtype))
            for later in pending:
                if later._compute is not None:
                    operands = (operand.value if isinstance(operand, DeferredReduction) else operand for operand in later._operands)
                    later._become(later._compute(*operands))
        assert self.value is not None
        return self.value

    def _become(self, value: torch.Tensor) -> None:
        self.value = value
        self._compute, self._operands, self._part = None, (), None

    def _pending(self) -> list[DeferredReduction]:
        """Return this and what it is made of, as far as it has no value yet; operands first."""
        found: dict[int, DeferredReduction] = {}
        path: list[tuple[DeferredReduction, bool]] = [(self, False)]
        while path:
            later, is_entered = path.pop()
            if is_entered:
                found.setdefault(id(later), later)
            elif id(later) not in found and later.value is None:
                path.append((later, True))
                path += [(operand, False) for operand in reversed(later._operands) if isinstance(operand, DeferredReduction)]
        return list(found.values())


def later_of(tensor: Any) -> DeferredReduction | None:
    """Return how the value of `tensor` will be had, ``None`` if its parts are to be put together as they are."""
    kept = tensor._state.deferred if isinstance(tensor, GlobalTensor) else None
    if kept is None:
        return None
    version: int
    later: DeferredReduction
    version, later = kept
    with torch._C.DisableTorchFunctionSubclass():
        return later if version_of(tensor) == version and not tensor.requires_grad else None


def keep_later(tensor: GlobalTensor, later: DeferredReduction) -> None:
    """Note how the value of `tensor` will be had, until it is changed."""
    with torch._C.DisableTorchFunctionSubclass():
        if not tensor.is_inference():  # nobody could tell when it is changed
            tensor._state.deferred = version_of(tensor), later


def may_wait(tensor: torch.Tensor) -> bool:
    """Return whether a tensor may be computed anew from whole values: nothing but its value counts."""
    with torch._C.DisableTorchFunctionSubclass():
        return not (is_followed(tensor) or tensor.is_inference() or tensor.is_complex()) and tensor.device.type in _DEVICES


def is_narrow(tensor: torch.Tensor) -> bool:
    """Return whether the type of `tensor` has so few digits that roundings show."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.dtype in _NARROW

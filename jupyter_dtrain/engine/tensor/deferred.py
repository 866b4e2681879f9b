"""Deferred arithmetic on partial values: recorded now, computed on the reduced values when one of them is read.

An accuracy in float32 is a count divided by a number, rounded once. If every rank rounded its part before the all-reduce, the last digit
would depend on the number of engines. The same holds for a sum of such values, which is rounded at each addition. Sums and multiples of
partial values are therefore recorded. When the first of them is read, one all-reduce gives the values of all pending ones, and the
operations run again on them, in the cell's order and dtypes. Values that require gradients are not deferred: their graph consists of the
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .placement_types import GlobalTensor, is_followed
from .versions import version_of

MOST_PENDING = 500
"""The most pending operations and parts; beyond it the exchange takes place at once."""
_NARROW = frozenset((torch.float32, torch.float16, torch.bfloat16))
_DEVICES = frozenset(("cpu", "cuda"))  # others may have no float64


class DeferredReduction:
    """A value that every rank will have after an exchange: an operation on other values, or the sum of the ranks' parts.

    Parameters
    ----------
    compute : callable, optional
        Computes the value from `operands`.
    operands : sequence
        Each `DeferredReduction` among them is replaced by its value.
    part : torch.Tensor, optional
        The rank's part of a sum, in float64.
    dtype : torch.dtype
        Type of the value of a sum.

    Attributes
    ----------
    value : torch.Tensor, optional
        ``None`` until the value is computed.
    num_pending : int
        Upper bound of the operations and parts that the value waits for, itself included.
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
        """Return the value. A collective, if the value is still pending: every rank calls it at the same place.

        Parameters
        ----------
        all_sum : callable
            All-reduces (sums) a tensor over the ranks and returns the result.
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
        """Return this value and its operands, recursively, that are not computed yet; operands first."""
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
    """Return the deferred computation of `tensor`, ``None`` if its parts have to be reduced as they are."""
    kept = tensor._state.deferred if isinstance(tensor, GlobalTensor) else None
    if kept is None:
        return None
    version: int
    later: DeferredReduction
    version, later = kept
    with torch._C.DisableTorchFunctionSubclass():
        return later if version_of(tensor) == version and not tensor.requires_grad else None


def keep_later(tensor: GlobalTensor, later: DeferredReduction) -> None:
    """Set the deferred computation of `tensor`. It is valid until the tensor is written to."""
    with torch._C.DisableTorchFunctionSubclass():
        if not tensor.is_inference():  # inference tensors have no version counter, so writes go unnoticed
            tensor._state.deferred = version_of(tensor), later


def may_wait(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` may be recomputed from reduced values: it is real, needs no graph, and its device has float64."""
    with torch._C.DisableTorchFunctionSubclass():
        return not (is_followed(tensor) or tensor.is_inference() or tensor.is_complex()) and tensor.device.type in _DEVICES


def is_narrow(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` is float32, float16 or bfloat16, where rounding differences show."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.dtype in _NARROW

"""Sharded layers in bfloat16 and float16: ranks add up float32, and round the sum once, as one process does.

One process multiplies 16-bit numbers, accumulates the products in float32, and rounds the sum. If each rank rounded its partial sum, a
result would have the rounding errors of all of them. So ranks compute in float32, which represents the products exactly, and round the
sum over the ranks.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from .column_parallel import Columns, copy

_ROUNDED = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Precision:
    """The dtypes in which a linear layer is computed.

    Attributes
    ----------
    dtype : torch.dtype
        Of the output, and of the operands.
    of_parts : torch.dtype
        Of the partial results of a rank.
    autocast : bool
        Whether operands are cast to `dtype`.
    """

    dtype: torch.dtype
    of_parts: torch.dtype
    autocast: bool = False

    def operand(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what a rank computes with; of another dtype than this it stays, which is the error that it would be."""
        if self.dtype is self.of_parts:
            return tensor
        if self.autocast and tensor.dtype is not torch.float64:
            tensor = tensor.to(self.dtype)
        return tensor.to(self.of_parts) if tensor.dtype is self.dtype else tensor

    def linear(self, given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``F.linear`` in the dtype of parts, of an operand and parameters as they are."""
        weight, bias = self.operand(weight), None if bias is None else self.operand(bias)
        off: Any = torch.autocast("cpu", enabled=False) if self.autocast and self.dtype is not self.of_parts else nullcontext()
        with off:
            return nn.functional.linear(given, weight, bias)

    def result(self, parts: torch.Tensor) -> torch.Tensor:
        """Return what a layer comes to, of its dtype."""
        return parts if self.dtype is self.of_parts else parts.to(self.dtype)


def precision_for(given: torch.Tensor) -> Precision:
    """Return how a linear layer is computed that is given such a tensor now."""
    dtype = given.dtype
    autocast = torch.is_autocast_enabled("cpu") and dtype is not torch.float64
    if autocast:
        dtype = torch.get_autocast_dtype("cpu")
    return Precision(dtype, torch.float32 if dtype in _ROUNDED else dtype, autocast)


class Entered(NamedTuple):
    """A replicated value that local ones are computed of, and how."""

    value: torch.Tensor
    precision: Precision


def enter(given: torch.Tensor, columns: Columns) -> Entered:
    """Return what layers by columns compute with. Of its gradient ranks have parts, which they add up before it is rounded."""
    precision = precision_for(given)
    if precision.autocast:
        given = given.to(precision.dtype)
    return Entered(copy(given, columns, precision.of_parts), precision)

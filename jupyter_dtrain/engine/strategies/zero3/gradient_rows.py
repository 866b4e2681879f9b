"""The gradient of a sharded parameter: rows of it on each rank, which the cell sees as one tensor that spans them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from ...tensor.batch_shard import BatchShard
from ...tensor.placement_types import GlobalTensor, Shard, from_local, to_local
from .sharded_rows import quiet


class GradientRows(ABC):
    """What a rank has of the gradient of a parameter.

    Attributes
    ----------
    rank : int
    dtype : torch.dtype
    shares : tuple of BatchShard
        The rows of each rank.
    dim : int
        Along which these are.
    own : slice, Tensor or tuple
        The index of those of this one.
    rows : Tensor
        Of the parameter. (r, ...)
    """

    rank: int
    dtype: torch.dtype
    shares: tuple[BatchShard, ...]
    dim: int
    own: Any
    rows: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self._gradient: torch.Tensor | None = None
        self._gradient_view: GlobalTensor | None = None

    @property
    @abstractmethod
    def parameter(self) -> nn.Parameter:
        """The cell's object, whose own gradient is what is whole."""

    @property
    def gradient(self) -> torch.Tensor | None:
        """The rows of the gradient: those of what the cell sees of it, which it may have given others. (r, ...)."""
        return self._gradient if self._gradient_view is None else to_local(self._gradient_view)

    def read_gradient(self) -> torch.Tensor | None:
        """Return what the cell sees as ``parameter.grad``: rows of which are on each rank, or what it has set."""
        with quiet():
            if self._gradient is None:
                return self.parameter.grad
            if self._gradient_view is None:
                self._gradient_view = from_local(self._gradient, Shard(self.dim, self.shares[self.rank]))
            return self._gradient_view

    def set_gradient(self, value: torch.Tensor | None) -> None:
        """Let ``parameter.grad`` be `value`, which is whole, or has its rows on the ranks as the parameter has them."""
        if value is not None and value is self._gradient_view:
            return
        self._gradient = self._gradient_view = None
        with quiet():
            if isinstance(value, GlobalTensor):
                self.parameter.grad = None
                self._gradient, self._gradient_view = to_local(value), value
            else:
                self.parameter.grad = value

    def has_rows_of(self, value: GlobalTensor) -> bool:
        """Return whether `value` has its rows on the ranks as the parameter has them, and nothing behind it."""
        with quiet():
            alike = value.dtype == self.dtype and value.shape == self.rows.shape and not value.requires_grad
            return alike and value.placement == Shard(self.dim, self.shares[self.rank])

    def add_gradient(self, rows: torch.Tensor) -> None:
        """Add to the rows of the gradient."""
        own = self.gradient
        if own is None:
            self._gradient = rows
        else:
            with quiet(), torch.no_grad():
                own.add_(rows)

    def cut_gradient(self) -> None:
        """Keep the rows alone of a gradient that is whole."""
        with quiet(), torch.no_grad():
            whole = self.parameter.grad
            if self._gradient is None and whole is not None:
                self._gradient = whole.detach()[self.own].clone()
                self.parameter.grad = None

    def _forget_gradient(self) -> None:
        self._gradient = self._gradient_view = None

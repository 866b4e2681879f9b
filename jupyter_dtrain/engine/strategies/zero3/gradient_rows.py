"""The gradient of a sharded parameter: its rows on each rank, which the cell sees as one global tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from ....serialization.cut_graphs import without_graph
from ...tensor.batch_shard import BatchShard
from ...tensor.graph_placement import computed_by
from ...tensor.placement_types import GlobalTensor, Shard, from_local, to_local
from .sharded_rows import give_back, quiet


class GradientRows(ABC):
    """The rows of a parameter's gradient on one rank.

    Attributes
    ----------
    rank : int
    shape : tuple of int
        Of the full parameter.
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
    shape: tuple[int, ...]
    dtype: torch.dtype
    shares: tuple[BatchShard, ...]
    dim: int
    own: Any
    rows: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self._gradient: torch.Tensor | None = None
        self._gradient_view: GlobalTensor | None = None
        self._gradient_home: torch.Tensor | None = None  # the notebook's own tensor, to which it is returned if the cell sets no other

    @property
    @abstractmethod
    def parameter(self) -> nn.Parameter:
        """The parameter, the object that the cell has. Its own ``grad`` is set where the gradient is full."""

    @property
    def gradient(self) -> torch.Tensor | None:
        """The rows of the gradient, also those of the global tensor that the cell may reference. (r, ...)."""
        return self._gradient if self._gradient_view is None else to_local(self._gradient_view)

    @property
    def has_rows(self) -> bool:
        """Whether there is a gradient, of which each rank has rows."""
        return self._gradient is not None

    @property
    def gradient_view(self) -> GlobalTensor | None:
        """The gradient as the cell has got it, if it has."""
        return self._gradient_view

    def read_gradient(self) -> torch.Tensor | None:
        """Return what the cell gets as ``parameter.grad``: a global tensor of the rows, or what it has set itself."""
        with quiet():
            if self._gradient is None:
                return self.parameter.grad
            if self._gradient_view is None:
                self._gradient_view = from_local(self._gradient, Shard(self.dim, self.shares[self.rank]))
            return self._gradient_view

    def set_gradient(self, value: torch.Tensor | None) -> None:
        """Set ``parameter.grad`` to `value`: a full tensor, or a global one that is sharded as the parameter is."""
        if value is not None and value is self._gradient_view:
            return
        self._forget_gradient()
        with quiet():
            if isinstance(value, GlobalTensor):
                self.parameter.grad = None
                self._gradient, self._gradient_view = to_local(value), value
            else:
                self.parameter.grad = value

    def as_seen(self, full: torch.Tensor) -> torch.Tensor:
        """Return `full`, the full gradient, as the cell has seen it: one that it has made part of a graph is part of one. (n, ...)."""
        with quiet():
            seen = self._gradient_view
            if seen is None or not seen.requires_grad:
                return full
            return full.requires_grad_() if seen.grad_fn is None else without_graph(full, None, computed_by(seen.grad_fn))

    def has_rows_of(self, value: GlobalTensor) -> bool:
        """Return whether `value` is sharded as the parameter is, and has no autograd graph."""
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

    def add_full_gradient(self) -> None:
        """Add a full gradient, which a pass has computed beside the rows of an earlier one, to these."""
        with quiet(), torch.no_grad():
            whole = self.parameter.grad
            if self.has_rows and whole is not None:
                self.parameter.grad = None
                self.add_gradient(whole.detach()[self.own])

    def memory_for_gradient(self) -> torch.Tensor:
        """Return memory for the full gradient, the notebook's own if it came from there; its contents are undefined. (R, ...)."""
        home = self._gradient_home
        if home is None or home.dtype != self.dtype or not home.is_contiguous():
            return torch.empty(self.shape, dtype=self.dtype, device="cpu")
        return home

    def make_gradient_full(self, full: torch.Tensor) -> None:
        """Have the full gradient from now on, in the notebook's own tensor if it came from there."""
        home = self._gradient_home
        if home is not None and full is not home and full.dtype == home.dtype and not full.requires_grad:
            with quiet(), torch.no_grad():
                full = home.copy_(full)
        self.set_gradient(full)

    def cut_gradient(self, *, is_home: bool = False) -> None:
        """Cut a full gradient down to the rows of this rank, unless it is part of a graph; `is_home`: it came from the notebook."""
        with quiet(), torch.no_grad():
            whole = self.parameter.grad
            if self._gradient is None and whole is not None and not whole.requires_grad:
                self._gradient = whole.detach()[self.own].clone()
                self.parameter.grad = None
                if is_home:
                    self._gradient_home = whole
                    give_back(whole)

    def _forget_gradient(self) -> None:
        self._gradient = self._gradient_view = self._gradient_home = None

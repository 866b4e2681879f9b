"""A parameter of a stage: all of its rows are on the rank of the stage, none on the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ...tensor.placement_types import GlobalTensor, Shard, from_local, to_local
from ..zero3.parameter_shard import ParameterShard
from ..zero3.sharded_rows import SharedRows, quiet


class StageParameter(ParameterShard):
    """A parameter whose rows are on the ranks of stage `owner`: one rank in each data-parallel group."""

    strategy = "pipeline"

    def __init__(self, parameter: nn.Parameter, storage: SharedRows, *, owner: int, in_use: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(parameter, storage, **options)
        self._in_use = in_use
        self.owner, self.is_here = owner, self.own.start < self.own.stop or not self.shape[0]
        self.has_all = self.shares[self.rank].num_samples == self.shape[0]

    # A rank without rows shows the cell one row of zeros, like a rank without samples, which has one stand-in sample.

    @property
    def gradient(self) -> torch.Tensor | None:
        """The gradient's rows on this rank. (r, ...)."""
        return super().gradient if self.is_here else self._gradient

    def read_gradient(self) -> torch.Tensor | None:
        """Return the value of ``parameter.grad`` in the cell."""
        if not self.is_here and self._gradient is not None and self._gradient_view is None and self.shape[0]:
            with quiet():
                zeros = torch.zeros((1, *self.shape[1:]), dtype=self.dtype, device="cpu")
                self._gradient_view = from_local(zeros, Shard(0, self.shares[self.rank]))
        return super().read_gradient()

    def add_gradient(self, rows: torch.Tensor) -> None:
        """Add to this rank's rows of the gradient."""
        seen = self._gradient_view
        super().add_gradient(rows)
        if seen is not None and not self.is_here:
            # Mark the value read before as stale on every rank: reading it again is collective, so all ranks must do it or none.
            with quiet(), torch.no_grad():
                to_local(seen).zero_()

    def set_gradient(self, value: torch.Tensor | None) -> None:
        """Set ``parameter.grad`` to `value`."""
        super().set_gradient(value)
        if not self.is_here and self._gradient is not None:
            with quiet():
                self._gradient = torch.empty_like(self.rows)

    def has_rows_of(self, value: GlobalTensor) -> bool:
        """Return whether `value` is sharded like the parameter. The answer is the same on all ranks."""
        with quiet():
            shape = self.rows.shape if self.is_here else torch.Size((1, *self.shape[1:]))
            alike = value.dtype == self.dtype and value.shape == shape and not value.requires_grad
            return alike and value.placement == Shard(0, self.shares[self.rank])

    @contextmanager
    def computed_with(self) -> Iterator[None]:
        """Make it an ordinary parameter over the stored rows, which nobody writes to, until the end of the ``with`` block.

        Rows on replicas of the stage are fetched first.
        """
        parameter = self.parameter
        if not self.has_all:
            with self._in_use([self]):
                yield
            return
        is_away = self.full is None and not self.uses
        with quiet(), torch.no_grad():
            if is_away:
                parameter.data = self.rows
        self.uses += 1
        parameter.__class__ = nn.Parameter
        try:
            yield
        finally:
            self.uses -= 1
            with quiet(), torch.no_grad():
                if is_away:
                    parameter.data = self.away
                parameter.__class__ = self.kind()

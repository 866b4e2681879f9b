"""A parameter of a stage: whole on the rank of the stage, with nothing of it elsewhere."""

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
    """A parameter whose rows are on the ranks of stage `owner`, of which each group with all stages has one, and nowhere else."""

    strategy = "pipeline"

    def __init__(self, parameter: nn.Parameter, storage: SharedRows, *, owner: int, in_use: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(parameter, storage, **options)
        self._in_use = in_use
        self.owner, self.is_here = owner, self.own.start < self.own.stop or not self.shape[0]
        self.has_all = self.shares[self.rank].num_samples == self.shape[0]

    # A rank without rows shows the cell a row of zeros, as a rank without samples shows a sample.

    @property
    def gradient(self) -> torch.Tensor | None:
        """The rows of the gradient. (r, ...)."""
        return super().gradient if self.is_here else self._gradient

    def read_gradient(self) -> torch.Tensor | None:
        """Return what the cell sees as ``parameter.grad``."""
        if not self.is_here and self._gradient is not None and self._gradient_view is None and self.shape[0]:
            with quiet():
                zeros = torch.zeros((1, *self.shape[1:]), dtype=self.dtype, device="cpu")
                self._gradient_view = from_local(zeros, Shard(0, self.shares[self.rank]))
        return super().read_gradient()

    def add_gradient(self, rows: torch.Tensor) -> None:
        """Add to the rows of the gradient."""
        seen = self._gradient_view
        super().add_gradient(rows)
        if seen is not None and not self.is_here:
            # All ranks are to know that what they have read of it is old, or some would read it again and others not.
            with quiet(), torch.no_grad():
                to_local(seen).zero_()

    def set_gradient(self, value: torch.Tensor | None) -> None:
        """Let ``parameter.grad`` be `value`."""
        super().set_gradient(value)
        if not self.is_here and self._gradient is not None:
            with quiet():
                self._gradient = torch.empty_like(self.rows)

    def has_rows_of(self, value: GlobalTensor) -> bool:
        """Return whether `value` has its rows where the parameter has them: the same on all ranks."""
        with quiet():
            shape = self.rows.shape if self.is_here else torch.Size((1, *self.shape[1:]))
            alike = value.dtype == self.dtype and value.shape == shape and not value.requires_grad
            return alike and value.placement == Shard(0, self.shares[self.rank])

    @contextmanager
    def computed_with(self) -> Iterator[None]:
        """Let the parameter be plain, with the rows as they lie, which nobody writes to, until the end of the ``with`` block.

        Those of other groups are fetched.
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

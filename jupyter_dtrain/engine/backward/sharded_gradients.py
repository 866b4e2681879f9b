"""The interface of strategies that shard gradients over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from .backward_pass import BackwardPass


class ShardedGradients(Protocol):
    """Reduces gradients of which each rank keeps a shard. A strategy implements it, and `GradientSync` calls it."""

    def begins(self, one: BackwardPass) -> None:
        """Check a pass before its leaves are determined; raise if it is not supported, on all ranks alike."""

    def not_reduced(self, one: BackwardPass) -> AbstractContextManager[None]:
        """Add the full gradients of a pass that is equal on all ranks to sharded ones, after the ``with`` block. A collective."""

    def around(self, one: BackwardPass) -> BackwardPass:
        """Return the pass to run in place of `one`, which may include work for other ranks. A collective."""

    def among(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of `leaves` whose gradients are sharded. A collective."""

    def during(self, wanted: Sequence[torch.Tensor], reached: Sequence[torch.Tensor]) -> AbstractContextManager[Callable[[], None]]:
        """Reduce the sharded gradients of `wanted` in a pass, until the end of the ``with`` block. A collective.

        Parameters
        ----------
        wanted : sequence of Tensor
            The leaves with sharded gradients.
        reached : sequence of Tensor
            Those that the pass reaches on this rank.

        Returns
        -------
        context manager
            Its value must be called after the pass, before any other collective.
        """

    def as_if_failed(self, rank: int) -> None:
        """Set sharded gradients to those of one process whose pass fails where that of `rank`, the first, has failed. A collective."""

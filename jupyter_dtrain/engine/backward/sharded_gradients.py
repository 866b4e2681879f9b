"""The seam to strategies that keep a part of each gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from .backward_pass import BackwardPass


class ShardedGradients(Protocol):
    """Reduces gradients of which each rank is to have a part: what a strategy fills, and `GradientSync` calls where one has."""

    def begins(self, one: BackwardPass) -> None:
        """Be told of a pass before its leaves are known; raise where it cannot be gone through. The same on all ranks."""

    def around(self, one: BackwardPass) -> BackwardPass:
        """Return the pass to run in the place of `one`: with what ranks are to do for each other beside it. Collective."""

    def among(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of `leaves` whose gradients are such. Collective."""

    def during(self, wanted: Sequence[torch.Tensor], reached: Sequence[torch.Tensor]) -> AbstractContextManager[Callable[[], None]]:
        """Reduce those of `wanted` in a pass that comes to `reached` on this rank, until the end of the ``with`` block. Collective.

        What is given is to be called when the pass is over, before anything else is exchanged.
        """

"""Detect recomputation within a backward pass (activation checkpointing), and make its determinism checks work on global tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from ...system.patches import patched_items
from .batch_norm import GlobalNormalization
from .placement_types import GlobalTensor


class BackwardPasses:
    """Tracks whether a backward pass is running.

    Parameters
    ----------
    normalization : GlobalNormalization, optional
        Told of each pass, so that recomputed layers use the shard of their last call.

    Attributes
    ----------
    under_way : bool
        Whether a pass is running.
    """

    def __init__(self, normalization: GlobalNormalization | None) -> None:
        self.under_way = False
        self._normalization = normalization

    def run(self, backward: Callable[..., None], *args: Any, **options: Any) -> None:
        """Run ``backward(*args, **options)`` as a backward pass."""
        self.under_way = True
        if self._normalization is not None:
            self._normalization.again = True
        try:
            backward(*args, **options)
        finally:
            self.under_way = False
            if self._normalization is not None:
                self._normalization.again = False

    def compute_again(self, values: Any) -> bool:
        """Return whether a call with arguments `values` is a recomputation: in a backward pass, without global tensors."""
        return self.under_way and not any(isinstance(leaf, GlobalTensor) for leaf in pytree.tree_leaves(values))


_CHECKS = "torch.utils.checkpoint._allowed_determinism_checks_to_fns"
_checks: dict[str, Callable[[torch.Tensor], Any]] = getattr(checkpoint, "_allowed_determinism_checks_to_fns", {})


@contextmanager
def checked_by_parts() -> Iterator[None]:
    """Let activation checkpointing's determinism checks look at the ranks' parts, until the end of the ``with`` block.

    The check runs once within an operation, where a global tensor has the shape of the part, and once outside, where it has the global one.
    """

    def of_part(check: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        @wraps(check)
        def look(tensor: torch.Tensor) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                return check(tensor)

        return look

    with patched_items(_checks, {name: of_part(check) for name, check in _checks.items()}, listed=_CHECKS):
        yield

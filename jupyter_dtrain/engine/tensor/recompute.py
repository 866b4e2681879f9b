"""What is computed again in a backward pass: the parts of a graph that activation checkpointing keeps nothing of, and what adjoints run."""

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
    """Knows whether a backward pass is under way.

    Parameters
    ----------
    normalization : GlobalNormalization, optional
        Told of each: its layers see the share then that they saw before.

    Attributes
    ----------
    under_way : bool
    """

    def __init__(self, normalization: GlobalNormalization | None) -> None:
        self.under_way = False
        self._normalization = normalization

    def run(self, backward: Callable[..., None], *args: Any, **options: Any) -> None:
        """Run a backward pass."""
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
        """Return whether what is called on `values` is called by a backward pass, on tensors of the rank's own."""
        return self.under_way and not any(isinstance(leaf, GlobalTensor) for leaf in pytree.tree_leaves(values))


_CHECKS = "torch.utils.checkpoint._allowed_determinism_checks_to_fns"
_checks: dict[str, Callable[[torch.Tensor], Any]] = getattr(checkpoint, "_allowed_determinism_checks_to_fns", {})


@contextmanager
def checked_by_parts() -> Iterator[None]:
    """Let checkpointing's check that all is as before look at the ranks' own parts, until the end of the ``with`` block.

    Of a tensor that spans the ranks it asks once within an operation, where the shape is that of the part, and once outside of any.
    """

    def of_part(check: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        @wraps(check)
        def look(tensor: torch.Tensor) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                return check(tensor)

        return look

    with patched_items(_checks, {name: of_part(check) for name, check in _checks.items()}, listed=_CHECKS):
        yield

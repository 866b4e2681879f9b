"""Let the functions that activation checkpointing recomputes run in a backward pass as they ran in the forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch.utils import checkpoint

from ...system.patches import patched

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def recomputed_as(wrap: Wrap) -> Iterator[None]:
    """Let `wrap` replace each function that is checkpointed, until the end of the ``with`` block.

    It is called in the forward pass. What it returns is called there, and again in the backward pass.
    """
    generator = checkpoint._checkpoint_without_reentrant_generator
    before = vars(checkpoint.CheckpointFunction).get("apply")

    @wraps(generator)
    def without_reentrant(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return generator(wrap(function), *args, **kwargs)

    def apply(function: Callable[..., Any], *args: Any) -> Any:
        # Looked up at each call: `GlobalView` replaces `torch.autograd.Function.apply`.
        inherited = super(checkpoint.CheckpointFunction, checkpoint.CheckpointFunction)
        return (inherited.apply if before is None else before)(wrap(function), *args)  # type: ignore[attr-defined]

    with (
        patched(checkpoint, "_checkpoint_without_reentrant_generator", without_reentrant),
        patched(checkpoint.CheckpointFunction, "apply", apply),
    ):
        yield

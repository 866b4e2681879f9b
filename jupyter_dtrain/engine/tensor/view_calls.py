"""Record the view operations that made a tensor, so that the same view can be taken of a full tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch


class ViewCall(NamedTuple):
    """A view operation."""

    func: Any
    args: tuple[Any, ...]  # without the first, as the cell passed them: sizes are global
    kwargs: dict[str, Any]
    number: int | None  # index of the result, if the operation returns several


def seen_through(whole: torch.Tensor, views: Iterable[ViewCall]) -> torch.Tensor | None:
    """Apply `views` to a full tensor; ``None`` if the result is no view of it, as a full tensor may have another layout than a shard."""
    result, calls = whole, tuple(views)
    for func, args, kwargs, number in calls:
        try:
            result = func(result, *args, **kwargs)
        except RuntimeError:  # `view` of a tensor with gaps
            return None
        result = result if number is None else result[number]
    return result if not calls or have_one_memory(result, whole) else None


def have_one_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors share a storage."""
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return bool(tensor.untyped_storage()._cdata == other.untyped_storage()._cdata)
        except NotImplementedError:  # sparse, or batched by a transform
            return False

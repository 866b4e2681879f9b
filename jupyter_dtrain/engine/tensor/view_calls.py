"""Views: by which operations one tensor is another's memory, so that the same view can be had of a full tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch


class ViewCall(NamedTuple):
    """An operation of which a tensor is a view."""

    func: Any
    args: tuple[Any, ...]  # behind the first, as the cell gave them: they are of global shapes
    kwargs: dict[str, Any]
    number: int | None  # of the result, where there are several


def seen_through(whole: torch.Tensor, views: Iterable[ViewCall]) -> torch.Tensor | None:
    """Return what `views` make of a whole tensor; ``None``: no view, as a whole one lies otherwise in its memory than a part."""
    result, calls = whole, tuple(views)
    for func, args, kwargs, number in calls:
        try:
            result = func(result, *args, **kwargs)
        except RuntimeError:  # `view` of what has gaps
            return None
        result = result if number is None else result[number]
    return result if not calls or have_one_memory(result, whole) else None


def have_one_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have their numbers in one storage."""
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return bool(tensor.untyped_storage()._cdata == other.untyped_storage()._cdata)
        except NotImplementedError:  # sparse, or batched by a transform
            return False

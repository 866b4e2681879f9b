"""The type of global tensors, which in the cell is equal to ``torch.Tensor``: in comparisons, as a key, in a set, and where it is shown.

It is a subclass of its own for PyTorch, whose dispatch compares types by identity, but in one place: functions written in Python gather the
types of their operands in a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
import torch.overrides

from ...system.patches import put


class LikeTensor(type(torch.Tensor)):  # type: ignore[misc]
    """Metaclass by which ``type(loss) == torch.Tensor`` holds in the cell, and the type prints as ``torch.Tensor``."""

    def __eq__(cls, other: object) -> bool:
        return cls is other or other is torch.Tensor

    def __hash__(cls) -> int:
        return hash(torch.Tensor)

    def __repr__(cls) -> str:
        return repr(torch.Tensor)


def tensor_type() -> type[torch.Tensor]:
    """Return ``torch.Tensor``: as what the type of global tensors goes home."""
    return torch.Tensor


def _of_global_first(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return PyTorch's function, for which a plain tensor, of a base class, is no reason to leave out a global one."""

    @wraps(original)
    def overloaded(args: Iterable[Any], get_type: Callable[[Any], type] | None = None) -> list[Any]:
        if get_type is None:
            args = [*args]
            if any(type(type(arg)) is LikeTensor for arg in args):
                args = [arg for arg in args if type(arg) is not torch.Tensor]
        return original(args, get_type)

    return overloaded


put(torch.overrides, "_get_overloaded_args", _of_global_first(torch.overrides._get_overloaded_args))

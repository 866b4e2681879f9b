"""The optimizer state of a parameter as it is described to other ranks: without the values of large tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from ...dedup import SMALLEST


@dataclass(frozen=True)
class Outline:
    """A tensor of numbers in memory.

    Attributes
    ----------
    device : str
        The type of its device.
    values : Tensor, optional
        Its numbers, on the CPU; ``None`` where they are so many that they go another way.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    values: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Outline:
        """Return the outline of `tensor`."""
        values = None if is_large(tensor) else tensor.detach().cpu().clone()
        return cls(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device.type, values)

    def tensor(self, device: torch.device) -> torch.Tensor:
        """Return a tensor with this outline. A large one is uninitialized, and its memory is not touched."""
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        return made if self.values is None else made.copy_(self.values)


def is_large(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether a value is a tensor whose values are sent apart from the rest."""
    return _is_plain(value) and value.nbytes >= SMALLEST and value.untyped_storage().nbytes() == value.nbytes


def _is_plain(value: object) -> TypeGuard[torch.Tensor]:
    return type(value) is torch.Tensor and value.layout == torch.strided and value.device.type in ("cpu", "cuda")


def outline_of(kept: Any) -> Any:
    """Return the state of a parameter with an :class:`Outline` in the place of each tensor."""
    if not isinstance(kept, Mapping):
        return kept
    return {key: Outline.of(value) if _is_plain(value) else value for key, value in kept.items()}


def large_in(kept: Any) -> list[torch.Tensor]:
    """Return the large tensors in the state of a parameter, in their order."""
    return [value for value in kept.values() if is_large(value)] if isinstance(kept, Mapping) else []


def large_outlines(outline: Any) -> list[Outline]:
    """Return the outlines of the large tensors in an outline of a state, in their order."""
    values = outline.values() if isinstance(outline, Mapping) else ()
    return [value for value in values if isinstance(value, Outline) and value.values is None]


def sizes_of(outline: Any) -> list[int]:
    """Return the size in bytes of each of these."""
    return [torch.empty(one.shape, dtype=one.dtype, device="meta").nbytes for one in large_outlines(outline)]


def kept_from(outline: Any, *, near: torch.Tensor, old: dict[Any, Any] | None = None, device: torch.device | None = None) -> Any:
    """Return the state of the parameter `near` from its outline.

    Parameters
    ----------
    near : Tensor
        On whose device tensors are that are on a device.
    old : dict, optional
        What there was of it: it is changed to be that, tensor by tensor, so whoever has one of these has the new numbers.
    device : torch.device, optional
        Where all tensors are instead.
    """
    if not isinstance(outline, Mapping):
        return outline
    kept: dict[Any, Any] = {}
    for key, value in outline.items():
        if not isinstance(value, Outline):
            kept[key] = value
            continue
        here = device or (near.device if value.device == near.device.type else torch.device(value.device))
        before = None if old is None else old.get(key)
        kept[key] = value.tensor(here) if not _is_plain(before) else _changed(before, value, here)
    if old is None:
        return kept
    old.clear()
    old.update(kept)
    return old


def _changed(tensor: torch.Tensor, outline: Outline, device: torch.device) -> torch.Tensor:
    same = (tensor.dtype, tuple(tensor.shape), tensor.stride()) == (outline.dtype, outline.shape, outline.stride)
    if not same or tensor.device != device or is_large(tensor) != (outline.values is None):
        tensor.data = outline.tensor(device)
    elif outline.values is not None:
        tensor.copy_(outline.values)
    return tensor


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a large tensor as a flat tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())

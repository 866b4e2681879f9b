"""Full tensors that reads have brought: kept, as a cell reads a batch entry by entry, and taken back, as it may write into what it reads.

What is written into a full tensor, or into a sample of it, another version of that says. What is written through an array of NumPy's,
nothing says: where the cell has had one, or a sample that it may have had one of, bytes are compared when the tensor is used again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad

from ..placement_types import GlobalTensor, KeptFull, Shard
from .operands import at, globals_in, same_bytes

_MOST_VIEWED = 8
"""Tensors whose samples the cell may hold: older ones are asked only when the cell computes with them by name."""


@dataclass(kw_only=True)
class KeptFulls:
    """What is kept of the global tensors that the cell has read."""

    viewed: list[GlobalTensor] = field(default_factory=list)  # of whose wholes the cell may hold samples, which it may write into
    transforms: int = 0  # of torch.func that are under way, one in another

    def keep(self, tensor: GlobalTensor, whole: torch.Tensor) -> None:
        """Keep the whole of `tensor`, of which the cell may take samples, until the tensor is changed."""
        with torch._C.DisableTorchFunctionSubclass():
            tensor._state.full = KeptFull(tensor._version, whole, whole._version)
        if isinstance(tensor.placement, Shard):
            self.viewed = [*(other for other in self.viewed[1 - _MOST_VIEWED :] if other is not tensor), tensor]

    def is_read(self, tensor: Any) -> bool:
        """Return whether the whole of `tensor` is kept as it is now: the cell may hold samples of it, which are to change with it."""
        kept = tensor._state.full if type(tensor) is GlobalTensor else None
        return kept is not None and kept.version == self.version_of(tensor)

    def version_of(self, tensor: GlobalTensor) -> int | None:
        """Return the version of a tensor whose whole may be kept until there is another, ``None`` if it may not."""
        with torch._C.DisableTorchFunctionSubclass():
            if tensor.is_inference() or tensor._state.is_uncounted or forward_ad._current_level >= 0:
                return None
            if tensor.requires_grad and (
                tensor.is_leaf or self.transforms or not torch.is_grad_enabled() or not isinstance(tensor.placement, Shard)
            ):
                return None
            return tensor._version

    @staticmethod
    def lend(result: Any, operands: Any) -> None:
        """Note of which of `operands` the cell has got a view, or several."""
        view = result[0] if isinstance(result, tuple | list) and result else result
        if isinstance(view, torch.Tensor) and view._is_view():
            for tensor in globals_in(operands):
                if tensor._state.full is not None and view._base is tensor._state.full.tensor:
                    tensor._state.is_lent = True

    def take_back(self, tensor: GlobalTensor, *, by_array: bool = False) -> bool:
        """Write into the part ``(b, …)`` what the cell has written into the whole ``(B, …)``: ``image = x[0]; image *= 2``.

        `by_array`: look also for what nothing counts.

        Returns
        -------
        bool
            Whether there may be more to come: the cell holds samples of the whole.
        """
        kept = tensor._state.full
        if kept is None or not isinstance(tensor.placement, Shard):
            return False
        whole, own = kept.tensor, at(tensor.placement.dim, tensor.placement.loaded)
        with torch._C.DisableTorchFunctionSubclass(), torch.set_grad_enabled(whole.requires_grad):
            is_current = kept.version == tensor._version  # else a model has written into the part
            if whole._version != kept.full_version or (by_array and is_current and not same_bytes(whole[own], tensor)):
                tensor.copy_(whole[own])
                tensor._state.full = KeptFull(tensor._version, whole, whole._version)
        return bool(whole._use_count() > 1)  # type: ignore[attr-defined]  # which PyTorch does not declare

"""How often the memory of a tensor was written to: what is known of its values counts until that is another number.

PyTorch counts it for a tensor, its views and what is detached from it, together. What ``x.data`` gives has a count of its own, as has a
tensor that was given another's memory by ``x.data = y``: for such memory all of its counts are added up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass
class _Counts:
    """The version counters of one memory, each held by a tensor without memory, and what was written without any."""

    storage: StorageWeakRef
    holders: list[torch.Tensor] = field(default_factory=list)
    num_uncounted: int = 0

    def sum(self) -> int:
        """Return a number that grows with each write."""
        return self.num_uncounted + sum(holder._version for holder in self.holders)


_of_memory: dict[int, _Counts] = {}
"""By the storage's address, which no other gets while it is weakly referred to."""


def version_of(tensor: torch.Tensor) -> int:
    """Return a number that grows whenever the memory of `tensor`, which is not of inference mode, is written to."""
    with torch._C.DisableTorchFunctionSubclass():
        if not _of_memory:
            return tensor._version
        try:
            counts = _of_memory.get(tensor.untyped_storage()._cdata)
        except NotImplementedError:  # sparse, or batched by a transform
            counts = None
        return tensor._version if counts is None else counts.sum()


def count_together(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Note that `other` has got the memory of `tensor`, and that what is written to one is not counted for the other."""
    with torch._C.DisableTorchFunctionSubclass():
        if not tensor.is_inference() and not other.is_inference() and tensor.layout == torch.strided:  # nothing counts for others
            _counts(tensor).holders.append(_holder(other))


def note_write(tensor: torch.Tensor) -> None:
    """Note that something may have been written to the memory of `tensor` that nothing has counted."""
    with torch._C.DisableTorchFunctionSubclass():
        _counts(tensor).num_uncounted += 1


def copy_uncounted(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write `values` into `tensor` as NumPy would: what is known of it counts no more, and graphs are not told."""
    with torch._C.DisableTorchFunctionSubclass():
        note_write(tensor)
        tensor.data.copy_(values)


def _counts(tensor: torch.Tensor) -> _Counts:
    for address in [address for address, counts in _of_memory.items() if counts.storage.expired()]:
        del _of_memory[address]
    storage = tensor.untyped_storage()
    counts = _of_memory.get(storage._cdata)
    if counts is None:
        counts = _of_memory[storage._cdata] = _Counts(StorageWeakRef(storage), [_holder(tensor)])
    return counts


def _holder(tensor: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor with the version counter of `tensor`."""
    holder = tensor.detach()
    holder.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return holder

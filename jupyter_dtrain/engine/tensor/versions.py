"""Version numbers of storages: a cached value of a tensor is valid as long as the version of its storage is unchanged.

PyTorch has one version counter for a tensor, its views and detached aliases. ``x.data`` has a counter of its own, and so has a tensor that
got another's storage by ``x.data = y``. For such a storage, the version is the sum of all its counters and of the noted uncounted writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass
class _Counts:
    """The version counters of one storage, each held by an empty tensor, and the number of writes that no counter saw."""

    storage: StorageWeakRef
    holders: list[torch.Tensor] = field(default_factory=list)
    num_uncounted: int = 0

    def sum(self) -> int:
        """Return a number that grows with each write."""
        return self.num_uncounted + sum(holder._version for holder in self.holders)


_of_memory: dict[int, _Counts] = {}
"""By the storage's address, which is not reused while a weak reference to the storage exists."""


def version_of(tensor: torch.Tensor) -> int:
    """Return a number that grows with each write to the storage of `tensor`. Not for inference tensors."""
    with torch._C.DisableTorchFunctionSubclass():
        if not _of_memory:
            return tensor._version
        try:
            counts = _of_memory.get(tensor.untyped_storage()._cdata)
        except NotImplementedError:  # sparse, or batched by a transform
            counts = None
        return tensor._version if counts is None else counts.sum()


def count_together(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Record that `other` shares the storage of `tensor` but has a version counter of its own."""
    with torch._C.DisableTorchFunctionSubclass():
        if not tensor.is_inference() and not other.is_inference() and tensor.layout == torch.strided:  # only these have a usable counter
            _counts(tensor).holders.append(_holder(other))


def note_write(tensor: torch.Tensor) -> None:
    """Record that the storage of `tensor` may have been written to without a version bump."""
    with torch._C.DisableTorchFunctionSubclass():
        _counts(tensor).num_uncounted += 1


def copy_uncounted(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write `values` into `tensor` as NumPy would: cached values become invalid, but autograd's saved tensors stay valid."""
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

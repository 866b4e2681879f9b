"""Tensors in shared memory (``share_memory_()``): by them a process and the workers of its loaders tell each other something.

Another process than these gets a copy, in shared memory of its own, so that there they do the same with each other. Arrays of NumPy that
look into such a tensor go as that: a part of its memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def is_shared(storage: torch.UntypedStorage) -> bool:
    """Return whether a storage of the CPU is in memory that other processes may have."""
    return storage.device.type == "cpu" and storage.is_shared()


def is_in_shared_memory(tensor: torch.Tensor) -> bool:
    """Return whether the numbers of a tensor are."""
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and is_shared(tensor.untyped_storage())


def in_shared_memory(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy of a storage in shared memory. Not in place: the bytes belong to somebody else."""
    made: torch.UntypedStorage = torch.UntypedStorage._new_shared(storage.nbytes())
    made.copy_(storage, non_blocking=False)
    return made


def reduced_array(array: Any) -> Any:
    """Return how an array reduces that looks into a tensor in shared memory, ``NotImplemented`` for any other."""
    if type(array) is not np.ndarray or (tensor := shared_tensor(array)) is None:
        return NotImplemented
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    offset = array.ctypes.data - whole.data_ptr()
    return _array, (whole, array.dtype, array.shape, array.strides, offset, array.flags.writeable)


def shared_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    """Return the tensor in shared memory that an array looks into; ``None``: it does not."""
    base: Any = array.base
    while type(base) is np.ndarray:
        base = base.base
    return base if isinstance(base, torch.Tensor) and is_in_shared_memory(base) else None


def _array(
    whole: torch.Tensor, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int, writeable: bool
) -> Any:
    # Not `as_array`: what the array looks into has to be found again, when it goes home.
    made = np.ndarray(shape, dtype, whole.numpy(), offset, strides)
    made.flags.writeable = writeable
    return made

"""Tensors in shared memory (``share_memory_()``), through which a process and its loader workers communicate.

Another process gets a copy in shared memory of its own, so that it can share that with its own workers. NumPy arrays that share memory
with such a tensor are pickled as windows into it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def is_shared(storage: torch.UntypedStorage) -> bool:
    """Return whether a CPU storage is in memory that other processes may share."""
    return storage.device.type == "cpu" and storage.is_shared()


def is_in_shared_memory(tensor: torch.Tensor) -> bool:
    """Return whether the storage of a tensor is in shared memory."""
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and is_shared(tensor.untyped_storage())


def in_shared_memory(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy of a storage in shared memory. Not in place, as the original's memory belongs to another owner."""
    made: torch.UntypedStorage = torch.UntypedStorage._new_shared(storage.nbytes())
    made.copy_(storage, non_blocking=False)
    return made


def reduced_array(array: Any) -> Any:
    """Return the reduce value of an array that shares memory with a tensor in shared memory, else ``NotImplemented``."""
    if type(array) is not np.ndarray or (tensor := shared_tensor(array)) is None:
        return NotImplemented
    whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage())
    offset = array.ctypes.data - whole.data_ptr()
    return _array, (whole, array.dtype, array.shape, array.strides, offset, array.flags.writeable)


def shared_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    """Return the tensor in shared memory that an array is a view of, ``None`` if there is none."""
    base: Any = array.base
    while type(base) is np.ndarray:
        base = base.base
    return base if isinstance(base, torch.Tensor) and is_in_shared_memory(base) else None


def _array(
    whole: torch.Tensor, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int, writeable: bool
) -> Any:
    # Not `as_array`: the tensor must be found again as the array's base when the array is sent home.
    made = np.ndarray(shape, dtype, whole.numpy(), offset, strides)
    made.flags.writeable = writeable
    return made

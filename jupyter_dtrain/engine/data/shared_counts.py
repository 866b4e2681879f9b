"""What loader workers count in shared memory: saved when an iteration begins, so that it can be counted again from there.

Workers write to tensors of ``share_memory_()`` and to a ``multiprocessing.Value`` as they read, which is ahead of the batches given out. An
iteration that resumes reads the earlier batches again. Its workers therefore start with the values of the iteration's beginning, and come
to what one reading counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ...serialization.shared_values import set_bytes
from .fetch_effects import shared_and_changed

_LARGE = 1 << 20  # most bytes of a tensor or array that is saved; larger ones are taken for data and caches


class SharedCounts:
    """Saved values in shared memory to which the workers of an iteration that begins may write.

    Parameters
    ----------
    loader : DataLoader
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._beginning = [(held, content) for held in shared_and_changed(loader) if (content := _content(held)) is not None]
        self._present: list[Any] = []

    def set(self) -> None:
        """Restore the saved values before batches are read again."""
        self._present = [_content(held) for held, _ in self._beginning]
        for held, content in self._beginning:
            _set(held, content)

    def keep_changes(self) -> None:
        """Put back, after batches have been read again, what that has not changed: it may be the cell that has, since the beginning."""
        for (held, content), present in zip(self._beginning, self._present, strict=True):
            if _content(held) == content:
                _set(held, present)


def _content(held: Any) -> bytes | None:
    """Return the bytes of a tensor, an array or a ``multiprocessing.Value``; ``None`` if they are not saved."""
    size = held.untyped_storage().nbytes() if isinstance(held, torch.Tensor) else memoryview(held).nbytes
    if size > _LARGE:
        return None
    return _memory(held).tobytes() if isinstance(held, torch.Tensor) else bytes(held)


def _set(held: Any, content: bytes) -> None:
    if isinstance(held, torch.Tensor):
        _memory(held)[:] = np.frombuffer(content, np.uint8)
    else:
        set_bytes(held, content)


def _memory(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return all memory of a CPU tensor, of which it may be a view."""
    memory: np.ndarray[Any, Any] = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage()).numpy()
    return memory

"""Checks of GPU values without a device synchronization: their results are read later, before anything that depends on them is visible.

``bool(tensor)`` on a GPU waits for all kernels launched before it, and Python launches nothing meanwhile. Instead, the result is copied to
the host asynchronously in the stream. :func:`settle` reads it after a backward pass has been launched, or before a value is read. By then
the copy is mostly complete and the GPU has other work. No gradient and no value of a batch is visible before its check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

_pending: deque[tuple[Any, Callable[[], None], Callable[[], BaseException]]] = deque()  # result on the host, wait for it, make the error


def check(holds: torch.Tensor, error: Callable[[], BaseException]) -> None:
    """Raise `error` if `holds` is false: at once for a CPU tensor, in :func:`settle` for a CUDA tensor.

    Parameters
    ----------
    holds : Tensor, shape ()
        Of type bool.
    error : callable
        Makes the exception.
    """
    if not holds_up_a_queue(holds):
        if not holds:
            raise error()
        return
    _pending.append((*copied_to_host(holds), error))


def settle() -> None:
    """Wait for the results of all pending checks; raise the error of the first failed one and drop the rest."""
    while _pending:
        answer, wait, error = _pending.popleft()
        wait()
        if not answer[()]:
            _pending.clear()
            raise error()


def forget() -> None:
    """Drop all pending checks, as another cell begins."""
    _pending.clear()


def holds_up_a_queue(value: torch.Tensor) -> bool:
    """Return whether reading `value` synchronizes with its device: whether it is on a CUDA device."""
    return value.device.type == "cuda"


def copied_to_host(value: torch.Tensor) -> tuple[Any, Callable[[], None]]:
    """Start an asynchronous copy of a CUDA tensor to pinned host memory.

    Returns
    -------
    numpy.ndarray
        The copy, in the tensor's shape; valid after the wait.
    callable
        Waits until the copy is complete.
    """
    host = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=True)
    host.copy_(value, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return host.numpy(), event.synchronize

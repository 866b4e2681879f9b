"""Checks of values on a GPU that do not hold up its queue: they are looked at once something that depends on them can be seen.

To ask a tensor on a GPU whether it is true waits for all that was launched before, and while Python waits nothing new is launched. So the
answer is copied to the host in the stream, and read when a backward pass has been launched, or before a value is. By then the GPU has other
work, and mostly the answer is there. Nobody sees a gradient or a number of a batch before its check: what has come of it cannot be undone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

_pending: deque[tuple[Any, Callable[[], None], Callable[[], BaseException]]] = deque()  # answer, what waits for it, the error otherwise


def check(holds: torch.Tensor, error: Callable[[], BaseException]) -> None:
    """Raise `error` unless `holds`, a single bool: at once where it is on the CPU, else from :func:`settle`."""
    if not holds_up_a_queue(holds):
        if not holds:
            raise error()
        return
    _pending.append((*copied_to_host(holds), error))


def settle() -> None:
    """Wait for the answers to all checks, and raise the error of the first that does not hold."""
    while _pending:
        answer, wait, error = _pending.popleft()
        wait()
        if not answer[()]:
            _pending.clear()
            raise error()


def forget() -> None:
    """Drop all checks: another cell begins."""
    _pending.clear()


def holds_up_a_queue(value: torch.Tensor) -> bool:
    """Return whether who reads a tensor waits for all that was launched before."""
    return value.device.type == "cuda"


def copied_to_host(value: torch.Tensor) -> tuple[Any, Callable[[], None]]:
    """Begin to copy a tensor to the host; return the array that will have it, and what waits until it has."""
    host = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=True)
    host.copy_(value, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return host.numpy(), event.synchronize

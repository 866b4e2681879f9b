"""What an engine does once a cell is over and no other has come: it gives back the memory that the cell has left.

While a cell runs, memory that it frees stays with the process and is used again, which saves the system from clearing each page for
each large tensor of each step (see `environment`'s ``MALLOC_`` variables). A GPU's memory PyTorch keeps in the same way.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc

import torch

DELAY = 2.0  # seconds: whoever runs a cell again at once finds the memory there


class Idle:
    """Gives memory back a while after a task, unless another begins before."""

    def __init__(self) -> None:
        self._waiting: asyncio.TimerHandle | None = None

    def ends(self) -> None:
        """Give nothing back: a task begins."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def begins(self) -> None:
        """Give memory back in a while: a task has ended, in the thread of the event loop that will run the next."""
        self.ends()
        self._waiting = asyncio.get_running_loop().call_later(DELAY, give_back)


def give_back() -> None:
    """Give memory back to the system that nothing uses: what only hangs together in circles, and what was freed."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc's
        trim(0)

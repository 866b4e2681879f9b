"""What an engine does once a cell is over and no other has come: it frees what the cell has left, and gives the memory back later.

While a cell runs, memory that it frees stays with the process and is used again, which saves the system from clearing each page for
each large tensor of each step (see `environment`'s ``MALLOC_`` variables). So does the next cell with that of the last. A GPU's memory
PyTorch keeps in the same way, but others want that sooner: the notebook may go on with the model on the same GPU.
"""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import suppress

import torch

from ..system.resources import give_back, memory

SOON = 0.02
"""Seconds in which a task's answer is on its way."""
SCARCE = 2.0
"""Seconds after which what others may want goes back: a GPU's memory, and the host's where less than `SPARE` of it is left."""
SPARE = 0.25
KEPT = float(os.environ.get("JUPYTER_DTRAIN_KEEP_MEMORY", "60"))
"""Seconds after which the rest goes back: new memory is ten times as dear, and somebody at work runs the next cell soon."""


class Idle:
    """Frees what a task has left in circles when it is over, and gives the memory back later, unless another begins before."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.TimerHandle] = []

    def ends(self) -> None:
        """Give nothing back: a task begins."""
        for waiting in self._waiting:
            waiting.cancel()
        self._waiting.clear()

    def begins(self) -> None:
        """Give memory back in a while: a task has ended, in the thread of the event loop that will run the next."""
        self.ends()
        loop = asyncio.get_running_loop()
        actions = ((SOON, gc.collect), (SCARCE, give_back_what_is_scarce), (KEPT, give_back))
        self._waiting += [loop.call_later(seconds, action) for seconds, action in actions]


def can_be_used(device: torch.device) -> bool:
    """Return whether `device` works: a process whose GPU has failed in an operation (an assertion on the device) can use it no more."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def give_back_what_is_scarce() -> None:
    """Give memory back of a GPU, and of the host where little is left."""
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):  # one that has failed
            torch.cuda.empty_cache()
    if memory().available_fraction < SPARE:
        give_back()

"""Idle behavior of an engine: soon after a cell, garbage is collected; later, memory is returned.

While a cell runs, freed memory stays with the process and is reused. This spares the system from clearing each page for each large tensor
in each step (see the ``MALLOC_`` variables in `environment`). The next cell reuses the memory too. PyTorch caches a GPU's memory in the
same way, but that is returned sooner, as the notebook may continue with the model on the same GPU.
"""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import suppress

import torch

from ..system.resources import give_back, memory

SOON = 0.02
"""Seconds until a task's result is being sent."""
SCARCE = 2.0
"""Seconds until memory that others may need is returned: a GPU's, and the host's if less than the fraction `SPARE` is left."""
SPARE = 0.25
KEPT = float(os.environ.get("JUPYTER_DTRAIN_KEEP_MEMORY", "60"))
"""Seconds until the rest is returned: new memory costs ten times as much, and an active user soon runs the next cell."""


class Idle:
    """Collects reference cycles after a task and returns memory later, unless another task begins before."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.TimerHandle] = []

    def ends(self) -> None:
        """Cancel all pending actions, because a task begins."""
        for waiting in self._waiting:
            waiting.cancel()
        self._waiting.clear()

    def begins(self) -> None:
        """Schedule the actions after a task, in the thread of the event loop that will run the next task."""
        self.ends()
        loop = asyncio.get_running_loop()
        actions = ((SOON, collect), (SCARCE, give_back_what_is_scarce), (KEPT, give_back))
        self._waiting += [loop.call_later(seconds, action) for seconds, action in actions]


def collect() -> None:
    """Free what is in reference cycles, and cycles behind an autograd graph in such: they are found once the graph has gone."""
    gc.collect()
    gc.collect()


def can_be_used(device: torch.device) -> bool:
    """Return whether `device` works: after a failed GPU operation (a device-side assertion) a process can no longer use its GPU."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def give_back_what_is_scarce() -> None:
    """Return a GPU's cached memory, and the host's if little is left."""
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):  # the device has failed
            torch.cuda.empty_cache()
    if memory().available_fraction < SPARE:
        give_back()

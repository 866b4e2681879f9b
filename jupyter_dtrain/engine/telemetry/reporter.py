"""Reports of a rank to the kernel while a cell runs: their sources, and the emitter that sends them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...protocol import Paused, RankStarted
from ..task import Task
from ..timing import OUTSIDE, Counted, Timing
from .best_metric import Best
from .device_stats import DeviceSampler
from .emitter import Emitter, interval_for, publisher
from .notices import Notices, standing
from .observer import Observer

_samplers: dict[str, DeviceSampler] = {}  # by device: they know what is slow to ask


class Reports:
    """The reports of one rank.

    Attributes
    ----------
    observer : Observer
        Steps, losses, progress.
    timing : Timing
        Where the time goes.
    emitter : Emitter
        Sends to the kernel; it sends nothing by itself before it is started.
    notes : Notices
        Notes for the user.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self._rank, self._device = task.rank, device
        self.observer = Observer(task.rank, Best(task.options.best) if task.options.best is not None else None)
        self.timing = Timing(task.rank, device)
        self._sampler = _samplers.get(str(device)) or _samplers.setdefault(str(device), DeviceSampler(task.rank, device))
        self._sampler.start(task.rank)
        interval = interval_for(task.world_size, task.emit_interval)
        self.emitter = Emitter(publisher(), run_id=task.run_id, rank=task.rank, interval=interval)
        self.emitter.add_source(self.observer.drain)
        self.emitter.add_source(lambda: self.timing.drain(self.observer.step))
        self.emitter.add_source(self._sampler.due)
        self.notes = Notices(self.emitter.emit, rank=task.rank)

    def started(self, *, world_size: int) -> None:
        """Report that the rank has joined the group, and its device."""
        self.emitter.emit(
            RankStarted(
                rank=self._rank,
                world_size=world_size,
                host=socket.gethostname(),
                pid=os.getpid(),
                device=str(self._device),
                device_name=self._sampler.device_name(),
            )
        )

    def tell_standing(self) -> None:
        """Report at once where in the cell the rank is."""
        found = standing(self._rank)
        if found is not None:
            self.emitter.emit(found)
            self.emitter.flush()

    @contextmanager
    def pausing(self, number: int) -> Iterator[None]:
        """Report at once that the rank pauses, as pause `number`; the time of the ``with`` block does not count as the cell's."""
        self.emitter.emit(Paused(rank=self._rank, number=number, step=self.observer.step))
        self.emitter.flush()
        with Counted(OUTSIDE):
            yield

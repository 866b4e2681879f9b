"""Mirror a run of another process for views, from the messages of its recorder."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from ..protocol import RUN_PHASES_ENDED, DeviceUse, Message, Notice, Points, RunUpdate, Snapshot, TimeSplit
from ..runs.curves import RunCurves


class RunMirror:
    """Copy of what a :class:`~..runs.recorder.RunRecorder` has for views. Thread-safe.

    Parameters
    ----------
    run : RunUpdate
    """

    def __init__(self, run: RunUpdate) -> None:
        self._lock = threading.Lock()
        self._run = run
        self._curves = RunCurves(run.run_id)
        self._curves.drop_rows()
        self._devices: dict[int, DeviceUse] = {}
        self._times: dict[int, TimeSplit] = {}
        self._notices: list[Notice] = []
        self._fresh: list[Message] = [run]

    # -- in ----------------------------------------------------------------------------------------------------------

    def start(self, snapshot: Snapshot) -> None:
        """Apply the state so far."""
        self.apply([*snapshot.points, *snapshot.devices, *snapshot.times, *snapshot.notices])

    def apply(self, messages: Sequence[Message]) -> None:
        """Apply new messages."""
        with self._lock:
            told_anew = [message.step[0] for message in messages if isinstance(message, Points) and self._has_beyond(message)]
            if told_anew:  # the run has resumed from a checkpoint
                self._curves.cut(min(told_anew) - 1)
            for message in messages:
                match message:
                    case RunUpdate():
                        if message.step < self._run.step:  # the run resumes from a checkpoint
                            self._curves.cut(message.step)
                        self._run = message
                    case Points():
                        self._add(message)
                        continue
                    case DeviceUse():
                        self._devices[message.rank] = message
                    case TimeSplit():
                        self._times[message.rank] = message
                    case Notice():
                        self._notices.append(message)
                    case _:
                        continue
                self._fresh.append(message)

    def end(self, error: str) -> None:
        """Mark the run as failed, as its process is gone."""
        if not self.has_ended:
            self.apply([replace(self.run_update(), phase="failed", error=error)])

    def _has_beyond(self, points: Points) -> bool:
        last = self._curves.last_step(points.name)
        return bool(points.step) and last is not None and points.step[0] < last

    def _add(self, points: Points) -> None:
        for step, seconds, value in zip(points.step, points.time, points.value, strict=True):
            self._curves.add(points.name, step, seconds, math.nan if value is None else value)

    # -- out ---------------------------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended."""
        return self._run.phase in RUN_PHASES_ENDED

    def run_update(self) -> RunUpdate:
        """Return the current state of the run."""
        with self._lock:
            run = self._run
        return run if run.phase in RUN_PHASES_ENDED else replace(run, elapsed=max(run.elapsed, time.time() - run.started))

    def devices(self) -> list[DeviceUse]:
        """Return the latest report on each rank's device."""
        with self._lock:
            return [self._devices[rank] for rank in sorted(self._devices) if rank < self._run.world_size]

    def times(self) -> list[TimeSplit]:
        """Return the time split of each rank so far."""
        with self._lock:
            return [self._times[rank] for rank in sorted(self._times)]

    def notices(self) -> list[Notice]:
        """Return all notices of the run."""
        with self._lock:
            return list(self._notices)

    def drain(self) -> list[Message]:
        """Return what is new since the last call."""
        with self._lock:
            fresh, self._fresh = self._fresh, []
            return [*self._curves.drain(), *fresh]

    def snapshot_points(self) -> list[Points]:
        """Return the curves up to the last :meth:`drain`."""
        with self._lock:
            return self._curves.snapshot()

    def outline(self, limit: int) -> list[Points]:
        """Return the curves so far, of at most `limit` points each."""
        with self._lock:
            return self._curves.outline(limit)

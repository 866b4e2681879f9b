"""Show trials in the sidebar: all engines, the curves of all trials, and one of the runs in full."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ..protocol import DeviceUse, Message, Notice, Points, RunUpdate, TimeSplit, TrialRun, TrialRuns
from ..runs.record import ViewedRun
from ..runs.recorder import RunRecorder
from .executor import Lane

_Kind = TypeVar("_Kind", bound=Message)


class SideBySide:
    """Merge the recorders of all lanes' runs into one for views. Thread-safe.

    Ranks of the second lane are numbered after those of the first. The displayed run is a running one if there is any.

    Parameters
    ----------
    lanes : sequence of Lane
    total : int
        Number of trials, begun or not.
    """

    def __init__(self, lanes: Sequence[Lane], total: int) -> None:
        self._lanes, self._total = lanes, total
        self._lock = threading.Lock()
        self._begun: list[tuple[RunRecorder, Lane]] = []
        self._num_told = 0
        self._over: set[RunRecorder] = set()  # fully drained
        self._shown: RunRecorder | None = None
        self._told_of: RunRecorder | None = None  # the displayed run that views know of
        self._stopping = False
        self._over_all = False
        self._told_phases: list[str] = []
        for lane in lanes:
            lane.on_begin = self._note

    def _note(self, lane: Lane, recorder: RunRecorder) -> None:
        with self._lock:
            self._begun.append((recorder, lane))

    def set_stopping(self) -> None:
        """Show from now on that the trials are stopping."""
        self._stopping = True

    def finish(self) -> None:
        """Show from now on that all trials are over."""
        self._over_all = True

    def show(self, run: ViewedRun) -> None:
        """Display `run` from now on, after all have ended."""
        with self._lock:
            self._shown = next((recorder for recorder, _ in self._begun if recorder is run), self._shown)

    def run_update(self) -> RunUpdate | None:
        """Return the current state of the displayed run; ``None`` before the first has begun."""
        return None if self._shown is None else self._told(self._shown.run_update())

    def trials(self) -> TrialRuns:
        """Return the trials that have begun, as of the last :meth:`drain`."""
        with self._lock:
            return TrialRuns(runs=self._trials()[: self._num_told], total=self._total, over=self._over_all)

    def snapshot_points(self) -> list[Points]:
        """Return the curves of all trials up to the last :meth:`drain`."""
        with self._lock:
            return [points for recorder, _ in self._begun[: self._num_told] for points in recorder.snapshot_points()]

    def devices(self) -> list[DeviceUse]:
        """Return the latest report on the device of every engine."""
        return [self._of_lane(use, lane) for lane in self._lanes if lane.recorder is not None for use in lane.recorder.devices()]

    def times(self) -> list[TimeSplit]:
        """Return the time splits of all lanes' ranks in their last runs."""
        return [self._of_lane(split, lane) for lane in self._lanes if lane.recorder is not None for split in lane.recorder.times()]

    def notices(self) -> list[Notice]:
        """Return the notices of the displayed run."""
        return [] if self._shown is None else self._shown.notices()

    def drain(self) -> list[Message]:
        """Return what is new since the last call."""
        with self._lock:
            messages: list[Message] = []
            trials = self._trials()
            if (phases := [*(trial.phase for trial in trials), str(self._over_all)]) != self._told_phases:
                messages.append(TrialRuns(runs=trials, total=self._total, over=self._over_all))
                self._told_phases, self._num_told = phases, len(trials)
            self._choose()
            if self._shown is not None and self._shown is not self._told_of:
                self._told_of = self._shown
                messages += [self._told(self._shown.run_update()), *self._shown.notices()]
            for recorder, lane in self._begun:
                if recorder in self._over:
                    continue
                is_over = recorder.has_ended
                fresh = recorder.drain()
                if recorder is not self._shown:
                    fresh = [message for message in fresh if isinstance(message, Points | DeviceUse | TimeSplit)]
                messages += [self._of_lane(self._told(message), lane) for message in fresh]
                if is_over:
                    self._over.add(recorder)
            return messages

    def _trials(self) -> list[TrialRun]:
        runs = [recorder.run_update() for recorder, _ in self._begun]
        return [
            TrialRun(
                run_id=run.run_id,
                name=run.name,
                started=run.started,
                phase=run.phase,
                elapsed=run.elapsed,
                pruned_at=run.step if run.phase == "pruned" else None,
            )
            for run in runs
        ]

    def _choose(self) -> None:
        """Display another run if the displayed one has ended and another is running."""
        if self._shown is None or self._shown.has_ended:
            going = (recorder for recorder, _ in self._begun if not recorder.has_ended)
            self._shown = next(going, self._shown or (self._begun[0][0] if self._begun else None))

    def _told(self, message: _Kind) -> _Kind:
        if isinstance(message, RunUpdate) and self._stopping and message.phase == "running":
            return replace(message, phase="stopping")
        return message

    def _of_lane(self, message: _Kind, lane: Lane) -> _Kind:
        if isinstance(message, DeviceUse | TimeSplit | Notice):
            before = sum(other.num_engines for other in self._lanes[: self._lanes.index(lane)])
            return replace(message, rank=message.rank + before)
        return message

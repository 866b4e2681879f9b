"""What a kernel's views are told: the state of its engines, and of the run that is shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ..detached.mirror import RunMirror
from ..protocol import PROTOCOL_VERSION, ClusterUpdate, Message, RunPhase, RunUpdate, Snapshot
from ..runs.detached_index import unfollowed
from ..runs.recorder import RunRecorder
from ..trials.side_by_side import SideBySide


class SessionViews:
    """Collect news for views, and a summary for views that connect later. Any thread may use it.

    Parameters
    ----------
    folder : Path
        Where runs are recorded.

    Attributes
    ----------
    on_news : callable
        Called, on any thread, when there is something new for :meth:`drain`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._recorder: RunRecorder | RunMirror | SideBySide | None = None
        self._cluster_update = ClusterUpdate(phase="stopped")
        self._news: list[Message] = []
        self.on_news: Callable[[], None] = lambda: None

    @property
    def shown(self) -> RunRecorder | RunMirror | SideBySide | None:
        """The run that views show, if there has been one."""
        return self._recorder

    def note_cluster(self, update: ClusterUpdate) -> None:
        """Tell views of the engines that this kernel's cells run on. Any thread may call this."""
        with self._lock:
            self._news.append(update)
            self._cluster_update = update
        self.on_news()

    def show_phase(self, phase: RunPhase) -> None:
        """Set the phase of the run that is shown. Any thread may call this."""
        recorder = self._recorder
        if isinstance(recorder, RunRecorder):
            recorder.set_phase(phase)
        self.on_news()

    def start(self, recorder: RunRecorder | RunMirror | SideBySide) -> None:
        """Show this run in views from now on."""
        with self._lock:
            self._news.extend(() if self._recorder is None else self._recorder.drain())
            self._recorder = recorder

    def snapshot(self) -> Snapshot:
        """Return the current state: a summary of all that earlier calls of :meth:`drain` returned."""
        with self._lock:
            recorder, cluster = self._recorder, self._cluster_update
        run: RunUpdate | None = recorder.run_update() if recorder is not None else None
        return Snapshot(
            version=PROTOCOL_VERSION,
            cluster=cluster,
            run=run,
            points=recorder.snapshot_points() if recorder is not None else [],
            devices=recorder.devices() if recorder is not None else [],
            times=recorder.times() if recorder is not None else [],
            notices=recorder.notices() if recorder is not None else [],
            trials=recorder.trials() if isinstance(recorder, SideBySide) else None,
            detached=unfollowed(self._folder),
        )

    def drain(self) -> list[Message]:
        """Return what is new since the last call."""
        with self._lock:
            news, self._news = self._news, []
            recorder = self._recorder
        return news + (recorder.drain() if recorder is not None else [])

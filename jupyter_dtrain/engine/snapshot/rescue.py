"""Send a cell's results home from another thread, because the thread that runs the cell does not stop.

Code may swallow every interrupt, or block in C forever. Its process must then be killed, but what it has trained need not be lost. This
fails only for code that lets no other thread run; then the last snapshot remains.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from ...protocol import Homeward, Message
from ...system.atomic_files import write_whole
from ..arrival.objects import is_stepping
from ..cell import Failure, interrupted_at
from ..task import Outcome
from ..telemetry.emitter import Emitter
from ..telemetry.observer import Observer

LIMIT = timedelta(seconds=1)
"""Longest wait for the end of an optimizer's step: half-finished steps are not sent home."""
SPEED = 1e8
"""Assumed minimum speed of sending results home, in bytes per second."""
PEACE, PEACE_AT_END = timedelta(seconds=0.5), timedelta(seconds=2)
"""Longest silence between reports of progress; and, after the cell has ended, between the last report and the rank's return."""
RETRY = timedelta(milliseconds=50)


def rescue_file(folder: Path, rank: int) -> Path:
    """Return the file of the rescued outcome of `rank`."""
    return folder / f"rescued-{rank}"


def leave_outcome(file: Path, data: bytes) -> None:
    """Write a pickled outcome to `file`, for a notebook that cannot be reached."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(file, data)


class Rescue:
    """Sends home the results of a cell that does not stop.

    Parameters
    ----------
    file : Path
        Destination, written atomically.
    rank : int
    filename : str
        Filename of the cell's code.
    observer : Observer
    emitter : Emitter
    """

    def __init__(
        self,
        file: Path,
        *,
        rank: int,
        filename: str,
        observer: Observer,
        emitter: Emitter,
    ) -> None:
        self._file, self._rank, self._filename = file, rank, filename
        self._observer, self._emitter = observer, emitter
        self._outcome: Callable[[Failure], Outcome] | None = None
        self._num_bytes: Callable[[], int] = lambda: 0
        self._cell = threading.current_thread().ident or 0
        self._thread: threading.Thread | None = None
        self._until = 0.0
        self._leaves = False
        emitter.add_source(self._tell)

    def stand_by(self, outcome: Callable[[Failure], Outcome], *, num_bytes: Callable[[], int]) -> None:
        """Set the function that returns the outcome for a failure, and the one that estimates its size. Both run on another thread."""
        self._outcome, self._num_bytes = outcome, num_bytes

    def start(self) -> None:
        """Start the rescue on its own thread, if the cell has begun. Any thread may call this."""
        if self._thread is None and self._outcome is not None:
            self._thread = threading.Thread(target=self._run, name="dtrain-rescue", daemon=True)
            self._thread.start()

    def stand_down(self) -> None:
        """Note that the cell has ended by itself, so that its results are returned normally. Called on the cell's thread."""
        self._leaves = True
        self._emitter.flush()

    def _run(self) -> None:
        begun = time.monotonic()
        self._until = begun + LIMIT.total_seconds() + self._num_bytes() / SPEED
        self._emitter.flush()
        try:
            while not (self._leaves or self._is_done()) and time.monotonic() - begun < LIMIT.total_seconds():
                time.sleep(RETRY.total_seconds())  # the cell's thread does not report its progress
        finally:
            self._until = 0.0

    def _is_done(self) -> bool:
        assert self._outcome is not None
        steps, frame = self._observer.step, sys._current_frames().get(self._cell)
        if frame is None or is_stepping(frame):
            return False
        try:
            data = pickle.dumps(self._outcome(interrupted_at(frame, self._filename)), protocol=pickle.HIGHEST_PROTOCOL)
        except RuntimeError:  # the cell has changed an object during pickling
            return False
        if self._observer.step != steps or is_stepping(sys._current_frames().get(self._cell)):
            return False
        leave_outcome(self._file, data)
        return True

    def _tell(self) -> list[Message]:
        if self._leaves or time.monotonic() < self._until:
            return [Homeward(rank=self._rank, seconds=(PEACE_AT_END if self._leaves else PEACE).total_seconds())]
        return []

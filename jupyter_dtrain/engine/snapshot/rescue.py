"""What a cell has made, taken home by another thread, because the one that runs it does not leave.

Code may swallow every interrupt, or wait in C for something that never comes. Its process has to be ended then, but not what it has
trained. Only code that lets no other thread run keeps it: for that there is the last snapshot.
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
"""Time for the cell to be out of an optimizer's step: what is half done is not taken home."""
SPEED = 1e8
"""Bytes in a second that go home at least."""
PEACE, PEACE_AT_END = timedelta(seconds=0.5), timedelta(seconds=2)
"""Time in which it is told once more that this goes on; or, at the end of the cell, in which the rank is back after it was told last."""
RETRY = timedelta(milliseconds=50)


def rescue_file(folder: Path, rank: int) -> Path:
    """Return where the outcome of `rank` lies that was rescued."""
    return folder / f"rescued-{rank}"


def leave_outcome(file: Path, data: bytes) -> None:
    """Leave a pickled outcome in `file`, for a notebook that it cannot be sent to."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(file, data)


class Rescue:
    """Takes home what a cell has made that does not end.

    Parameters
    ----------
    file : Path
        Where to; it is there as a whole or not at all.
    filename : str
        Of the cell.
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
        """Know what is to go home, given how the cell has failed, and about how large that is. Both are called on another thread."""
        self._outcome, self._num_bytes = outcome, num_bytes

    def start(self) -> None:
        """Do it, on a thread of its own, if the cell has begun. Any thread may call this."""
        if self._thread is None and self._outcome is not None:
            self._thread = threading.Thread(target=self._run, name="dtrain-rescue", daemon=True)
            self._thread.start()

    def stand_down(self) -> None:
        """Know that the cell has ended by itself, so what it has made goes home by itself. Called on the cell's thread."""
        self._leaves = True
        self._emitter.flush()

    def _run(self) -> None:
        begun = time.monotonic()
        self._until = begun + LIMIT.total_seconds() + self._num_bytes() / SPEED
        self._emitter.flush()
        try:
            while not (self._leaves or self._is_done()) and time.monotonic() - begun < LIMIT.total_seconds():
                time.sleep(RETRY.total_seconds())  # the other thread says nothing when it has gone on
        finally:
            self._until = 0.0

    def _is_done(self) -> bool:
        assert self._outcome is not None
        steps, frame = self._observer.step, sys._current_frames().get(self._cell)
        if frame is None or is_stepping(frame):
            return False
        try:
            data = pickle.dumps(self._outcome(interrupted_at(frame, self._filename)), protocol=pickle.HIGHEST_PROTOCOL)
        except RuntimeError:  # the cell has changed something meanwhile
            return False
        if self._observer.step != steps or is_stepping(sys._current_frames().get(self._cell)):
            return False
        leave_outcome(self._file, data)
        return True

    def _tell(self) -> list[Message]:
        if self._leaves or time.monotonic() < self._until:
            return [Homeward(rank=self._rank, seconds=(PEACE_AT_END if self._leaves else PEACE).total_seconds())]
        return []

"""Memory for a rank's first snapshot, got before that is due: the cell waits while its state is copied, and would wait for this as well."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from ...protocol import StateSize
from ..dedup import Apart, Common
from ..staging import Staging
from ..telemetry.emitter import Emitter
from .rank_state import RankState
from .snapshot_files import SnapshotWriter

SHARE = 0.02
"""Part of the time that snapshots may take."""
SPEED = 5e8
"""Bytes of a state that are copied, hashed and written in a second, about: until one has been."""
TOLD = 0.02  # seconds that a snapshot takes, from which on that is told before the first one
LARGE = 1 << 22  # bytes of a state for which memory is got beforehand


class MemoryAhead:
    """Tells what a snapshot will take, and gets memory for the first one.

    Parameters
    ----------
    rank : int
    state : RankState
    staging : Staging
        Has the memory.
    writer : SnapshotWriter
        Has a thread for it.
    emitter : Emitter

    Attributes
    ----------
    is_over : bool
        It was got, or a snapshot has got it.
    """

    def __init__(self, rank: int, state: RankState, *, staging: Staging, writer: SnapshotWriter, emitter: Emitter) -> None:
        self._rank, self._state = rank, state
        self._staging, self._writer, self._emitter = staging, writer, emitter
        self._due: float | None = None
        self._seconds = 0.0
        self.is_over = False

    def look(self, *, soon: bool, common: Callable[[Apart], Common | None]) -> None:
        """Tell what a snapshot will take, now that the optimizer has made what it keeps, and get memory before the first one is due.

        `soon` says that one is, and `common` returns what all ranks hold alike.
        """
        now = time.monotonic()
        if self._due is None:
            seconds = self._state.num_bytes() / SPEED
            self._due = now + seconds / SHARE / 2
            if seconds > TOLD:
                self._emitter.emit(StateSize(rank=self._rank, seconds=seconds))
        if now >= self._due or soon:
            self.is_over = True
            alike = common(self._state.apart())
            num_bytes = self._state.num_bytes(to_stage=True) - (alike.bytes_of_others(on_cpu=True) if alike is not None else 0)
            if num_bytes >= LARGE and not self._state.is_put_together:
                self._writer.begin(self._get, num_bytes)

    def _get(self, num_bytes: int) -> None:
        with suppress(MemoryError):  # what can be said of it is said when it is needed
            self._staging.make_ready(num_bytes)
        self._seconds = time.thread_time()

    def take_seconds(self) -> float:
        """Return the processor's seconds that it took, once."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

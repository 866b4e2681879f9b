"""Allocate memory for a rank's first snapshot in advance: the cell waits while its state is copied, and would wait for this too."""

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
"""Fraction of the run time that snapshots may take."""
SPEED = 5e8
"""Estimated bytes of a state that are copied, hashed and written per second, until a snapshot has been measured."""
TOLD = 0.02  # a snapshot estimated to take more seconds is reported before the first one
LARGE = 1 << 22  # fewest bytes of a state for which memory is allocated in advance


class MemoryAhead:
    """Reports the estimated duration of a snapshot, and allocates memory for the first one.

    Parameters
    ----------
    rank : int
    state : RankState
    staging : Staging
        Holds the memory.
    writer : SnapshotWriter
        Its thread allocates the memory.
    emitter : Emitter

    Attributes
    ----------
    is_over : bool
        Whether memory has been allocated, here or by a snapshot.
    """

    def __init__(self, rank: int, state: RankState, *, staging: Staging, writer: SnapshotWriter, emitter: Emitter) -> None:
        self._rank, self._state = rank, state
        self._staging, self._writer, self._emitter = staging, writer, emitter
        self._due: float | None = None
        self._seconds = 0.0
        self.is_over = False

    def look(self, *, soon: bool, common: Callable[[Apart], Common | None]) -> None:
        """Report how long a snapshot will take, once optimizers have state, and allocate memory before the first one is due.

        Parameters
        ----------
        soon : bool
            Whether a snapshot is due soon.
        common : callable
            Returns the state that is equal on all ranks.
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
        with suppress(MemoryError):  # the error is reported when the memory is needed
            self._staging.make_ready(num_bytes)
        self._seconds = time.thread_time()

    def take_seconds(self) -> float:
        """Return the CPU seconds that the allocation took, on the first call; 0 afterwards."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

"""Count what this project's data sets read in this process and its loaders' workers, and the seconds of each part.

Workers are forked, so the sums are in memory that they share with the process that they load for, each in its own slot: nothing is sent,
and nothing is lost if a worker is killed. Spawned workers are not counted.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

ROWS, BYTES, FILES, PARTITIONS, DECODING, TRANSFORMS = range(6)
_PLACES = 256  # number of processes that count at a time
_DOUBLE = 8  # bytes


class Counts(NamedTuple):
    """Sums since the process began.

    Attributes
    ----------
    rows : float
        Rows that were returned.
    bytes_read : float
        Bytes of files, or of computed partitions.
    files, partitions, decoding, transforms : float
        Seconds of file access, of computing partitions, of making arrays from what was read, and of transforms of samples. They include all
        threads and processes, also those that run in parallel with the training.
    """

    rows: float = 0.0
    bytes_read: float = 0.0
    files: float = 0.0
    partitions: float = 0.0
    decoding: float = 0.0
    transforms: float = 0.0


class _Counters:
    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start at 0, for this process and those that it forks from now on."""
        self.pid = os.getpid()
        self._sums: Any = memoryview(mmap.mmap(-1, _PLACES * len(Counts._fields) * _DOUBLE)).cast("d")
        self._place, self._forks = 0, 0
        self._lock = threading.Lock()

    def before_fork(self) -> None:
        self._forks += 1

    def in_child(self) -> None:
        """Count in another slot. A reused slot adds to the sums of the ended process."""
        self._lock = threading.Lock()
        if os.getppid() == self.pid:
            self._place = 1 + self._forks % (_PLACES - 1)
        else:  # forked by a worker
            self.start()

    def add(self, what: int, number: float) -> None:
        at = self._place * len(Counts._fields) + what
        with self._lock:  # a thread may read ahead
            self._sums[at] += number

    def read(self) -> Counts:
        width = len(Counts._fields)
        if not self._forks:
            return Counts(*self._sums[:width])
        return Counts(*(sum(self._sums[what::width]) for what in range(width)))


_counters = _Counters()
os.register_at_fork(before=lambda: _counters.before_fork(), after_in_child=lambda: _counters.in_child())

add = _counters.add
"""Add `number` to one of the counters above."""
read = _counters.read
"""Return the sums, including those of workers."""


def own() -> None:
    """Count for this process alone if it was forked from one that counts."""
    if _counters.pid != os.getpid():
        _counters.start()


@contextmanager
def spent(what: int) -> Iterator[None]:
    """Add the seconds of the ``with`` block to a counter."""
    began = perf_counter()
    try:
        yield
    finally:
        add(what, perf_counter() - began)

"""What data sets of this project have read in this process and in its loaders' workers, and how long each part of that took.

Workers are forked, so the sums lie in memory that they share with the process that they load for, in a place of their own each: nothing is
sent, and a worker that is killed takes nothing with it. (Those that are spawned count for nobody.)
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
_PLACES = 256  # processes that count at a time
_DOUBLE = 8  # bytes


class Counts(NamedTuple):
    """Sums since the process began.

    Attributes
    ----------
    rows : float
        Given out.
    bytes_read : float
        Read from files, or of partitions that were computed.
    files, partitions, decoding, transforms : float
        Seconds on the file system, on computing partitions, on making arrays of what was read, and in transforms of samples: those of all
        threads and processes, also beside the training.
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
        """Begin at 0, for this process and those that it forks from now on."""
        self.pid = os.getpid()
        self._sums: Any = memoryview(mmap.mmap(-1, _PLACES * len(Counts._fields) * _DOUBLE)).cast("d")
        self._place, self._forks = 0, 0
        self._lock = threading.Lock()

    def before_fork(self) -> None:
        self._forks += 1

    def in_child(self) -> None:
        """Count in another place. One that was a process's before goes on from what that has counted."""
        self._lock = threading.Lock()
        if os.getppid() == self.pid:
            self._place = 1 + self._forks % (_PLACES - 1)
        else:  # a process of a worker's
            self.start()

    def add(self, what: int, number: float) -> None:
        at = self._place * len(Counts._fields) + what
        with self._lock:  # a thread reads ahead
            self._sums[at] += number

    def read(self) -> Counts:
        width = len(Counts._fields)
        if not self._forks:
            return Counts(*self._sums[:width])
        return Counts(*(sum(self._sums[what::width]) for what in range(width)))


_counters = _Counters()
os.register_at_fork(before=lambda: _counters.before_fork(), after_in_child=lambda: _counters.in_child())

add = _counters.add
"""Count `number` more of one of the above."""
read = _counters.read
"""Return the sums, those of workers among them."""


def own() -> None:
    """Count for this process alone if it was forked from another that counts."""
    if _counters.pid != os.getpid():
        _counters.start()


@contextmanager
def spent(what: int) -> Iterator[None]:
    """Count the seconds of the ``with`` block."""
    began = perf_counter()
    try:
        yield
    finally:
        add(what, perf_counter() - began)

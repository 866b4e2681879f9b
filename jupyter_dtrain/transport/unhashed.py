"""Large buffers of one process, stored under unique names and recognized by their address instead of a hash.

No other process has the same buffer, so a hash would find nothing. Before a buffer is stored again, it is compared with what was stored
from the same address. If the system reports no writes to its pages since (:mod:`..system.dirty_pages`), the comparison is skipped.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..system.dirty_pages import Watch
from ..system.page_map import Range

BEGINNING = 1 << 16  # bytes that are compared first
CHUNK = 1 << 24  # bytes that one thread compares at a time
CHANGING = 2  # changes in a row after which a buffer is no longer watched, as writes to watched pages are slower
OWN = "own-"  # prefix of the names of unhashed buffers


class Outdate(Protocol):
    """Callback for a stored buffer that nothing refers to any more, because a newer one replaces it."""

    def __call__(self, name: str, *, by: str) -> None:
        """Let the buffer `by` overwrite the outdated buffer `name`, or remove that one."""


@dataclass(frozen=True)
class _Own:
    """The name of an unhashed buffer, and the watch that tells whether it was written to since."""

    name: str
    watch: Watch
    num_changes: int = 0  # in a row


class UnhashedBuffers:
    """The names of unhashed buffers.

    Parameters
    ----------
    stored : callable
        Returns the buffer stored under a name; raises a `FileNotFoundError` if there is none.
    watched : bool
        Watch the memory of buffers for writes, so that unwritten ones need no comparison.
    outdate : callable
        Called with the old and the new name of a buffer that has changed, if buffers are watched.
    """

    def __init__(self, stored: Callable[[str], memoryview], *, watched: bool, outdate: Outdate) -> None:
        self._stored, self._watched, self._outdate = stored, watched, outdate
        self._own: dict[Range, _Own] = {}

    def names(self, buffers: Sequence[memoryview], mapped: Any) -> dict[Range, str]:
        """Return the names of buffers by their place in memory: the earlier name if the contents are unchanged, else a new one.

        `mapped` applies a function to many arguments, as `map` does.
        """
        places = {place_of(buffer): buffer for buffer in buffers}
        before = {place: self._own.get(place) for place in places}
        unsure = [place for place, own in before.items() if own is None or not own.watch.is_unwritten()]
        # Watch before comparing and copying: a write in between must not be missed.
        watches = dict(zip(unsure, Watch.over(unsure) if self._watched else map(Watch, unsure), strict=True))
        for place, own in before.items():
            if own is not None and (place not in watches or self._holds(own.name, places[place], mapped)):
                self._own[place] = _Own(own.name, watches.get(place, own.watch))
                continue
            num_changes = own.num_changes + 1 if own is not None else 0
            self._own[place] = _Own(f"{OWN}{uuid.uuid4().hex}-{place[1]:x}", watches[place], num_changes)
            if own is not None and self._watched:
                self._outdate(own.name, by=self._own[place].name)
            if num_changes >= CHANGING:
                watches[place].end()
        return {place: self._own[place].name for place in places}

    def _holds(self, name: str, buffer: memoryview, mapped: Any) -> bool:
        """Return whether `buffer` equals the one stored under `name`."""
        try:
            stored = self._stored(name)
        except FileNotFoundError:
            return False
        here, there = _address(buffer), _address(stored)
        compare = ctypes.CDLL(None).memcmp  # a call through ctypes releases the GIL

        def same(start: int, length: int) -> bool:
            # `same` refers to both buffers until the last thread is done: threads may still compare once a difference is known.
            length = min(length, buffer.nbytes - start, stored.nbytes - start)
            return bool(compare(ctypes.c_void_p(here + start), ctypes.c_void_p(there + start), ctypes.c_size_t(length)) == 0)

        # Changed data usually differs at its beginning.
        return same(0, BEGINNING) and all(list(mapped(lambda start: same(start, CHUNK), range(0, buffer.nbytes, CHUNK))))


def place_of(buffer: memoryview) -> Range:
    """Return the address and length of a buffer."""
    return _address(buffer), buffer.nbytes


def _address(buffer: memoryview) -> int:
    address: int = np.frombuffer(buffer, np.uint8).ctypes.data
    return address

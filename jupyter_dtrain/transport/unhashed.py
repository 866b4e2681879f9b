"""Large buffers of one process under names of their own: known by their place in memory, and not by a hash of their bytes.

No other process has the same, so that a hash would find nothing. Before one is written again it is compared with what was stored last time
from the same place. Where the system tells that nobody has written there since (:mod:`..system.dirty_pages`), even that is left out.
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
CHANGING = 2  # times in a row that a buffer was written to, from which on it is not watched: a watched page is dearer to write to
OWN = "own-"  # begins the names of buffers that were not hashed


class Outdate(Protocol):
    """Called where what is stored under a name is nobody's any more, as what comes under another takes its place."""

    def __call__(self, name: str, *, by: str) -> None:
        """Have what is under `name` written over by what comes under `by`, or removed."""


@dataclass(frozen=True)
class _Own:
    """The name under which a buffer is stored that is not hashed, and what tells whether it is the same still."""

    name: str
    watch: Watch
    num_changes: int = 0  # in a row


class UnhashedBuffers:
    """The names of buffers that are not hashed.

    Parameters
    ----------
    stored : callable
        Returns what is stored under a name; a `FileNotFoundError`: nothing.
    watched : bool
        Whether buffers are watched for writes, so that those without are not looked at again.
    outdate : callable
        Told of what is stored of a buffer that has changed, where buffers are watched.
    """

    def __init__(self, stored: Callable[[str], memoryview], *, watched: bool, outdate: Outdate) -> None:
        self._stored, self._watched, self._outdate = stored, watched, outdate
        self._own: dict[Range, _Own] = {}

    def names(self, buffers: Sequence[memoryview], mapped: Any) -> dict[Range, str]:
        """Return the names of buffers by their place: those of the last time of buffers that hold the same.

        `mapped` applies a function to many things, as `map` does.
        """
        places = {place_of(buffer): buffer for buffer in buffers}
        before = {place: self._own.get(place) for place in places}
        unsure = [place for place, own in before.items() if own is None or not own.watch.is_unwritten()]
        # They are watched before they are compared and copied.
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
        """Return whether `buffer` is what is stored under `name`, byte by byte."""
        try:
            stored = self._stored(name)
        except FileNotFoundError:
            return False
        here, there = _address(buffer), _address(stored)
        compare = ctypes.CDLL(None).memcmp  # which lets other threads run

        def same(start: int, length: int) -> bool:
            # Both are held until the last thread is through: one may still compare when it is known that they differ.
            length = min(length, buffer.nbytes - start, stored.nbytes - start)
            return bool(compare(ctypes.c_void_p(here + start), ctypes.c_void_p(there + start), ctypes.c_size_t(length)) == 0)

        # What has changed differs at its beginning as a rule.
        return same(0, BEGINNING) and all(list(mapped(lambda start: same(start, CHUNK), range(0, buffer.nbytes, CHUNK))))


def place_of(buffer: memoryview) -> Range:
    """Return where a buffer is in memory, and its length."""
    return _address(buffer), buffer.nbytes


def _address(buffer: memoryview) -> int:
    address: int = np.frombuffer(buffer, np.uint8).ctypes.data
    return address

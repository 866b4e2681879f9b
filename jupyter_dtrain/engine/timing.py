"""Measure where a rank's time goes: a clock that is switched between parts where the run crosses a boundary anyway.

A switch reads the time and adds what has passed to the part that ends. So the parts add up to all of the time, and nested boundaries (a
collective in a backward pass) need nothing special. A switch costs a third of a microsecond, about ten times in a step.

On a CUDA device, calls return before their work is done. Boundaries are therefore marked by events in the device's stream, which are read
after the device has passed them: the training thread never waits for one.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

import torch

from ..protocol import Message, TimeSplit
from ..system import read_counters
from .busiest_line import BusiestLine
from .current_run import current_run

OTHER, DATA, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, OUTSIDE = range(7)  # OUTSIDE: before and after the cell
MAX_MARKS = 10_000
"""Most pending boundaries on a device; beyond that, time is not split until the device has passed some."""


class Timing:
    """Adds up the time of each part, from :meth:`start` to :meth:`stop`. Switched by the training thread, read by another.

    Parameters
    ----------
    rank : int
    device : torch.device
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank = rank
        self._clock: _HostClock | _DeviceClock = _DeviceClock() if device.type == "cuda" else _HostClock()
        self._reported: list[float] = [0.0] * OUTSIDE
        self.part = OUTSIDE
        self.num_workers: int | None = None
        self._read_before = read_counters.Counts()
        self._busiest = BusiestLine()

    def switch(self, part: int) -> int:
        """Switch to `part`, and return the previous part, to which the caller switches back."""
        before = self.part
        if before != part:
            self._clock.mark(before, part)
            self.part = part
        return before

    def start(self) -> None:
        """Begin to measure."""
        read_counters.own()
        self._read_before = read_counters.read()
        self._busiest = BusiestLine()
        current_run.timing = self
        self.switch(OTHER)

    def stop(self) -> None:
        """Stop measuring."""
        current_run.timing = None
        self.switch(OUTSIDE)

    def drain(self, step: int) -> list[Message]:
        """Return the sums so far as a message; `step` is the number of steps finished."""
        # During a switch in the other thread, a little time may count for the wrong part; the next report corrects this.
        now = self._clock.read()[:OUTSIDE]
        if now == self._reported:
            return []
        self._reported = now
        if self.part == OTHER:
            self._busiest.look()
        filename, line = self._busiest.found()
        read = [after - before for before, after in zip(self._read_before, read_counters.read(), strict=True)]
        return [
            TimeSplit(
                rank=self._rank,
                step=step,
                data=now[DATA],
                forward=now[FORWARD],
                backward=now[BACKWARD],
                communication=now[COMMUNICATION],
                optimizer=now[OPTIMIZER],
                other=now[OTHER],
                num_workers=self.num_workers,
                busiest_file=filename,
                busiest_line=line,
                rows=int(read[read_counters.ROWS]),
                bytes_read=int(read[read_counters.BYTES]),
                files=read[read_counters.FILES],
                partitions=read[read_counters.PARTITIONS],
                decoding=read[read_counters.DECODING],
                transforms=read[read_counters.TRANSFORMS],
            )
        ]


class Counted:
    """Counts a ``with`` block as `part`, while a cell is running."""

    def __init__(self, part: int) -> None:
        self._part = part

    def __enter__(self) -> None:
        self._timing = timing = current_run.timing
        self._before = OTHER if timing is None else timing.switch(self._part)

    def __exit__(self, *_: object) -> None:
        if self._timing is not None:
            self._timing.switch(self._before)


class _HostClock:
    """Measures host time in seconds."""

    def __init__(self) -> None:
        self._seconds = [0.0] * (OUTSIDE + 1)
        self._open = OUTSIDE, perf_counter()  # the current part, and its start

    def mark(self, part: int, following: int) -> None:
        """End `part` now and begin `following`."""
        now = perf_counter()
        since = self._open[1]
        # `read` accesses these in the opposite order, so that time during a switch may be missing from a report but is never counted twice.
        self._open = following, now
        self._seconds[part] += now - since

    def read(self) -> list[float]:
        """Return the sums, including the time so far of the current part."""
        now = perf_counter()
        seconds = list(self._seconds)
        part, since = self._open
        seconds[part] += max(0.0, now - since)
        return seconds


class _DeviceClock:
    """Measures seconds between events in the current stream of a CUDA device.

    It stops once the device has failed: an error of its own would be shown instead of the cell's.
    """

    def __init__(self) -> None:
        self._seconds = [0.0] * (OUTSIDE + 1)
        self._marks: deque[tuple[int, Any]] = deque()  # part that ends at the event, event
        self._free: list[Any] = []
        self._has_failed = False
        self._last: Any = self._event()

    def _event(self) -> Any:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def mark(self, part: int, _following: int) -> None:
        """End `part` at this point of the stream, unless the stream is captured into a CUDA graph."""
        if self._has_failed or len(self._marks) >= MAX_MARKS:
            return
        try:
            if not torch.cuda.is_current_stream_capturing():
                self._marks.append((part, self._event()))
        except RuntimeError:
            self._has_failed = True

    def read(self) -> list[float]:
        """Return the sums up to the last event that the device has passed."""
        try:
            while not self._has_failed and self._marks and self._marks[0][1].query():
                part, event = self._marks.popleft()
                self._seconds[part] += max(0.0, self._last.elapsed_time(event)) / 1000  # of two streams, either may be ahead
                self._free.append(self._last)
                self._last = event
        except RuntimeError:
            self._has_failed = True
        return list(self._seconds)

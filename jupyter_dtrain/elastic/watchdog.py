"""Detect ranks that wait for ever: when no progress is reported any more, ask all ranks for their lines and tell the user."""

from __future__ import annotations

import linecache
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from ..protocol import Message, Progress, Scalars, SnapshotTaken, Standing, Steps

AFTER = timedelta(seconds=float(os.environ.get("JUPYTER_DTRAIN_STALL_AFTER", "30")))
"""Time without a step, a batch or printed output after which the ranks are asked for their lines."""
PATIENCE = 10
"""Lower limit of that time, as a multiple of the longest pause so far: some cells have long steps."""
AGAIN = timedelta(seconds=2)
"""Time between two questions: a rank that has moved in between does not wait for ever."""
LONGER = 4
"""Factor by which the wait grows after a check without a finding."""
IDLE = 0.1
"""Largest part of that time that an idle process spends on the CPU."""


class Watchdog:
    """Watch for progress, and tell the user where the ranks are if there is none.

    Any thread may call :meth:`note`; one thread calls the rest.

    Parameters
    ----------
    world_size : int
    ask : callable
        Asks every rank for its line.
    say : callable
        Shows a line to the user.
    computed : callable
        Returns the CPU seconds of each rank so far, ``None`` where unknown.
    through : callable
        Returns whether a rank has come to the end of the cell.
    clock : callable
        Returns seconds; replaced in tests.
    """

    def __init__(
        self,
        world_size: int,
        *,
        ask: Callable[[], None],
        say: Callable[[str], None],
        computed: Callable[[], Sequence[float | None]],
        through: Callable[[int], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world_size, self._ask, self._say, self._computed, self._clock = world_size, ask, say, computed, clock
        self._through = through
        self._computed_then: Sequence[float | None] = ()
        self._last = clock()
        self._began = False
        self._longest = 0.0
        self._asked: float | None = None
        self._first: dict[int, Standing] | None = None
        self._answers: dict[int, Standing] = {}
        self._told = False
        self._longer = 1

    def note(self, event: Message | None) -> None:
        """Take an event of a rank; ``None``: a rank has printed something."""
        if isinstance(event, Standing):
            self._answers[event.rank] = event
        elif event is None or isinstance(event, Steps | Progress | Scalars | SnapshotTaken):
            now = self._clock()
            if self._began:  # the time before the first sign of progress is not a step's
                self._longest = max(self._longest, now - self._last)
            self._began, self._last = True, now
            self._asked, self._first, self._told, self._longer = None, None, False, 1

    def look(self) -> None:
        """Ask the ranks, or report their answers, when it is time."""
        now = self._clock()
        if self._told or self._world_size == 1 or now - self._last < self._longer * max(AFTER.total_seconds(), PATIENCE * self._longest):
            return
        if self._asked is None:
            self._asked, self._answers = now, {}
            self._ask()
        elif now - self._asked >= AGAIN.total_seconds():
            answers, first = dict(self._answers), self._first
            if first is None:
                self._asked, self._first, self._answers = now, answers, {}
                self._computed_then = self._computed()
                self._ask()
                return
            self._told = self._is_for_ever(answers, first, now - self._asked)
            if self._told:
                self._say(f"Nothing has happened for {now - self._last:.0f} s: {self._described(answers)}. ■ ends the cell.")
            else:
                self._asked, self._first, self._longer = None, None, self._longer * LONGER

    def _is_for_ever(self, answers: dict[int, Standing], first: dict[int, Standing], seconds: float) -> bool:
        if _waiting_places(answers) == _waiting_places(first) and _is_stuck(answers, self._world_size):
            return True
        if not answers or _places(answers) != _places(first) or not self._is_idle(seconds):
            return False
        # If no rank waits for another, the cell may sleep on purpose.
        return self._longer > 1 or any(answer.waiting for answer in answers.values())

    def _is_idle(self, seconds: float) -> bool:
        """Return whether no rank has used the CPU for `seconds`: all wait for something else (a lock, a DataLoader worker)."""
        both = list(zip(self._computed_then, self._computed(), strict=False))
        return bool(both) and all(then is not None and now is not None and now - then < IDLE * seconds for then, now in both)

    def _described(self, answers: dict[int, Standing]) -> str:
        parts = []
        for rank in range(self._world_size):
            answer = answers.get(rank)
            if self._through(rank):
                parts.append(f"rank {rank} has come to the end of the cell")
            elif answer is None:
                parts.append(f"rank {rank} does not answer")
            elif not answer.line:
                parts.append(f"rank {rank} waits for the others at the end of the cell")
            else:
                text = linecache.getline(answer.filename, answer.line).strip()
                function = "" if answer.function == "<module>" else f" of {answer.function}()"
                verb = "waits for the others at" if answer.waiting else "is at"
                parts.append(f"rank {rank} {verb} line {answer.line}{function}" + (f" `{text}`" if text else ""))
        return "; ".join(parts)


def _places(answers: dict[int, Standing]) -> dict[int, tuple[str, int]]:
    return {rank: (answer.filename, answer.line) for rank, answer in answers.items()}


def _waiting_places(answers: dict[int, Standing]) -> dict[int, tuple[str, int]]:
    return _places({rank: answer for rank, answer in answers.items() if answer.waiting})


def _is_stuck(answers: dict[int, Standing], world_size: int) -> bool:
    """Return whether a rank waits for ranks that are at another line or do not answer."""
    is_apart = len({(answer.filename, answer.line) for answer in answers.values()}) > 1
    return any(answer.waiting for answer in answers.values()) and (len(answers) < world_size or is_apart)

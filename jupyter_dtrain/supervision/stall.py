"""Ranks that wait for each other for ever: noticed when nothing comes any more, and told by the lines that they are at."""

from __future__ import annotations

import linecache
import os
import time
from collections.abc import Callable
from datetime import timedelta

from ..protocol import Message, Progress, Scalars, SnapshotTaken, Standing, Steps

AFTER = timedelta(seconds=float(os.environ.get("JUPYTER_DTRAIN_STALL_AFTER", "30")))
"""Time without a step, a batch or a printed line after which the ranks are asked where they are."""
PATIENCE = 10
"""Multiple of the longest such time so far that is waited at least: some cells take long steps."""
AGAIN = timedelta(seconds=2)
"""Time between asking twice: who has moved meanwhile does not wait for ever."""


class Stall:
    """Watches for progress, and says where the ranks are when there is none.

    :meth:`note` is called on any thread, all else on one.

    Parameters
    ----------
    world_size : int
    ask : callable
        Asks every rank where it is.
    say : callable
        Shows a line to the user.
    clock : callable
        Seconds; tests give their own.
    """

    def __init__(
        self, world_size: int, *, ask: Callable[[], None], say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._world_size, self._ask, self._say, self._clock = world_size, ask, say, clock
        self._last = clock()
        self._began = False
        self._longest = 0.0
        self._asked: float | None = None
        self._first: dict[int, Standing] | None = None
        self._answers: dict[int, Standing] = {}
        self._told = False

    def note(self, event: Message | None) -> None:
        """Take what a rank reports; ``None``: it has printed something."""
        if isinstance(event, Standing):
            self._answers[event.rank] = event
        elif event is None or isinstance(event, Steps | Progress | Scalars | SnapshotTaken):
            now = self._clock()
            if self._began:  # what comes before the first sign of life is not the cell's pace
                self._longest = max(self._longest, now - self._last)
            self._began, self._last = True, now
            self._asked, self._first, self._told = None, None, False

    def look(self) -> None:
        """Ask, or say what the answers were, where it is time."""
        now = self._clock()
        if self._told or self._world_size == 1 or now - self._last < max(AFTER.total_seconds(), PATIENCE * self._longest):
            return
        if self._asked is None:
            self._asked, self._answers = now, {}
            self._ask()
        elif now - self._asked >= AGAIN.total_seconds():
            answers, first = dict(self._answers), self._first
            if first is None:
                self._asked, self._first, self._answers = now, answers, {}
                self._ask()
                return
            self._told = True
            if _waiting_places(answers) == _waiting_places(first) and _is_stuck(answers, self._world_size):
                self._say(f"Nothing has happened for {now - self._last:.0f} s: {_described(answers, self._world_size)}. ■ ends the cell.")


def _waiting_places(answers: dict[int, Standing]) -> dict[int, tuple[str, int]]:
    return {rank: (answer.filename, answer.line) for rank, answer in answers.items() if answer.waiting}


def _is_stuck(answers: dict[int, Standing], world_size: int) -> bool:
    """Return whether somebody waits for ranks that are somewhere else."""
    waiting = [answer for answer in answers.values() if answer.waiting]
    return bool(waiting) and (len(answers) < world_size or len({(answer.filename, answer.line) for answer in answers.values()}) > 1)


def _described(answers: dict[int, Standing], world_size: int) -> str:
    parts = []
    for rank in range(world_size):
        answer = answers.get(rank)
        if answer is None:
            parts.append(f"rank {rank} does not answer")
            continue
        text = linecache.getline(answer.filename, answer.line).strip()
        function = "" if answer.function == "<module>" else f" of {answer.function}()"
        verb = "waits for the others at" if answer.waiting else "is at"
        parts.append(f"rank {rank} {verb} line {answer.line}{function}" + (f" `{text}`" if text else ""))
    return "; ".join(parts)

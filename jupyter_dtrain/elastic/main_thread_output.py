"""A cell's output: where it goes, and what other threads leave of it to the one that runs the cell, as it belongs to no cell otherwise."""

from __future__ import annotations

import queue
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from ..runs.record import ViewedRun


class Output(Protocol):
    """Where the cell's output goes."""

    def stream(self, name: str, text: str) -> None:
        """Show `text` printed to ``stdout`` or ``stderr``."""

    def display(self, content: dict[str, Any], *, update: bool) -> None:
        """Show a rich display, or show it in the place of an earlier one: the content of a ``display_data`` message."""

    def clear(self, *, wait: bool) -> None:
        """Clear what was shown."""

    def progress(self, text: str) -> None:
        """Show how far something is, in a line that is written over."""

    def say(self, text: str) -> None:
        """Show a line of this project's own."""

    def show_run(self, run: ViewedRun) -> None:
        """Show how the run is doing: called when it begins, some ten times a second, and when it has ended."""


class Inbox:
    """Things to do, in the order in which they came."""

    def __init__(self) -> None:
        self._left: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def leave(self, action: Callable[[], None]) -> None:
        """Leave something to be done. Any thread may call this."""
        self._left.put(action)

    def wake(self) -> None:
        """Let who waits look around. Any thread may call this, and a signal's handler."""
        self._left.put(None)

    def work(self, wait: timedelta) -> None:
        """Do all that there is; wait for something at most `wait`."""
        try:
            action = self._left.get(timeout=wait.total_seconds())
        except queue.Empty:
            return
        while True:
            if action is not None:
                action()
            try:
                action = self._left.get_nowait()
            except queue.Empty:
                return


# What all ranks print, or all trials of a cell, in lines that say whose each is.


class RankLines:
    """Puts a mark like ``[1]`` before each line of rank 1, or ``[lr=0.1]`` before those of a trial.

    Lines of several arrive in pieces and mixed, so a line is shown once it is complete. Of one that was written over with
    carriage returns, as progress bars are, the last state is shown.

    Parameters
    ----------
    show : callable
        Shows text printed to ``stdout`` or ``stderr``: (name, text).
    """

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self._show = show
        self._begun: dict[tuple[int | str, str], str] = {}

    def stream(self, rank: int | str, name: str, text: str) -> None:
        """Take in what `rank` has printed to ``stdout`` or ``stderr``."""
        *lines, begun = (self._begun.pop((rank, name), "") + text).split("\n")
        if begun:
            # A carriage return at the end may still be followed by the end of the line.
            self._begun[rank, name] = begun[begun.rstrip("\r").rfind("\r") + 1 :]
        if lines:
            self._show(name, "".join(f"[{rank}] {_last_state(line)}\n" for line in lines))

    def flush(self, of: int | str | None = None) -> None:
        """Show the lines that were begun and not ended, all or those of one rank or trial."""
        for rank, name in sorted((key for key in self._begun if of in (None, key[0])), key=str):
            self._show(name, f"[{rank}] {_last_state(self._begun.pop((rank, name)))}\n")


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]

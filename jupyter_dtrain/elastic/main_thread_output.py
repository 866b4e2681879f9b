"""A cell's output, and a queue that carries it to the cell's thread: Jupyter assigns output to a cell by the thread that prints it."""

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
        """Show the content of a ``display_data`` message, or update an earlier display with it."""

    def clear(self, *, wait: bool) -> None:
        """Clear the output."""

    def progress(self, text: str) -> None:
        """Show progress in a line that the next call overwrites."""

    def say(self, text: str) -> None:
        """Show a message of this project's own."""

    def show_run(self, run: ViewedRun) -> None:
        """Show the state of the run: called when it begins, about ten times a second, and when it has ended."""


class Inbox:
    """A queue of callables for the thread that runs the cell."""

    def __init__(self) -> None:
        self._left: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def leave(self, action: Callable[[], None]) -> None:
        """Add a callable. Any thread may call this."""
        self._left.put(action)

    def wake(self) -> None:
        """Wake the waiting thread. Any thread and a signal handler may call this."""
        self._left.put(None)

    def work(self, wait: timedelta) -> None:
        """Call all queued callables; if there are none, wait for the first at most `wait`."""
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


# Output of all ranks, or of all trials of a cell, each line marked with its rank or trial.


class RankLines:
    """Put a mark like ``[1]`` before each line of rank 1, or ``[lr=0.1]`` before those of a trial.

    Output of several ranks arrives in pieces and interleaved, so a line is shown once it is complete. Of a line that was overwritten
    by carriage returns, as progress bars do, the last state is shown.

    Parameters
    ----------
    show : callable
        Shows text printed to ``stdout`` or ``stderr``: (name, text).
    """

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self._show = show
        self._begun: dict[tuple[int | str, str], str] = {}

    def stream(self, rank: int | str, name: str, text: str) -> None:
        """Add text that `rank` has printed to ``stdout`` or ``stderr``."""
        *lines, begun = (self._begun.pop((rank, name), "") + text).split("\n")
        if begun:
            # A trailing carriage return may be the first half of "\r\n".
            self._begun[rank, name] = begun[begun.rstrip("\r").rfind("\r") + 1 :]
        if lines:
            self._show(name, "".join(f"[{rank}] {_last_state(line)}\n" for line in lines))

    def flush(self, of: int | str | None = None) -> None:
        """Show incomplete lines, of all ranks and trials or of one."""
        for rank, name in sorted((key for key in self._begun if of in (None, key[0])), key=str):
            self._show(name, f"[{rank}] {_last_state(self._begun.pop((rank, name)))}\n")


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]

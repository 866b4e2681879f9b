"""A trial that was tried: what has become of it, and how what it shows gets into the cell of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..elastic.main_thread_output import Inbox, Output, RankLines
from ..elastic.run_result import RunResult
from ..runs.record import ViewedRun
from ..serialization.open_files import WRITTEN
from .grid import Trial
from .pruning import Pruned


@dataclass
class Tried:
    """A trial and what has become of it.

    Attributes
    ----------
    run : ViewedRun, optional
        Once it has begun.
    detail : str
        What it waits for before.
    value : float, optional
        What it has come to, by the metric.
    result : RunResult, optional
        How it ended. What it has made is kept of the best alone.
    tracked : list of object
        The notebook's objects that went along.
    error : Exception, optional
        Why it could not be run.
    pruned : Pruned, optional
        Where a search has stopped it.
    written : list of dict
        What it has written to open files of the notebook, which get that of the best alone.
    """

    trial: Trial
    run: ViewedRun | None = None
    detail: str = "queued"
    value: float | None = None
    result: RunResult | None = None
    tracked: Sequence[object] = ()
    error: BaseException | None = None
    pruned: Pruned | None = None
    written: list[dict[str, Any]] = field(default_factory=list)

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped it before its end."""
        first = self.result.first if self.result is not None else None
        return self.pruned is None and first is not None and first.stopped

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error."""
        ends = self.result.ends if self.result is not None else []
        return self.pruned is None and (
            self.error is not None
            or (self.result is not None and self.result.lost is not None)
            or any(end.outcome is not None and end.outcome.failure is not None for end in ends)
        )


class TrialOutput:
    """What one trial shows, in the cell of all."""

    def __init__(self, tried: Tried, inbox: Inbox, output: Output, lines: RankLines) -> None:
        self._tried, self._inbox, self._output, self._lines = tried, inbox, output, lines

    def stream(self, name: str, text: str) -> None:
        """Show text, with the trial's label."""
        self._inbox.leave(lambda: self._lines.stream(self._tried.trial.label, name, text))

    def display(self, content: dict[str, Any], *, update: bool) -> None:
        """Show something else; what was written to open files is kept with the trial."""
        if WRITTEN in content["data"]:
            self._inbox.leave(lambda: self._tried.written.append(content))
            return
        if not update and "text/plain" in content["data"]:
            self.stream("stdout", "\n")  # whose it is
        self._inbox.leave(lambda: self._output.display(content, update=update))

    def clear(self, *, wait: bool) -> None:
        """Leave what others have shown."""

    def progress(self, text: str) -> None:
        """Say what the trial waits for."""
        self._tried.detail = text

    def say(self, text: str) -> None:
        """Say something to the user, with the trial's label."""
        self._inbox.leave(lambda: self._output.say(f"[{self._tried.trial.label}] {text}"))

    def show_run(self, run: ViewedRun) -> None:
        """Let the trial have its run."""
        self._tried.run = run

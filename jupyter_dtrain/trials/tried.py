"""Hold the state and results of a trial, and route its output to the cell."""

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
    """State and results of a trial.

    Attributes
    ----------
    run : ViewedRun, optional
        Its run, once it has begun.
    detail : str
        What it waits for before that.
    value : float, optional
        Its value of the metric.
    result : RunResult, optional
        How it ended. Only the best trial keeps its returned values.
    tracked : list of object
        The notebook's objects that were sent with it.
    error : Exception, optional
        Why it could not be run.
    pruned : Pruned, optional
        Where a search has stopped it.
    written : list of dict
        What it has written to open files of the notebook, which get only that of the best trial.
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
        """Whether the user has stopped it before its end."""
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
    """Output of one trial, in the cell of all trials."""

    def __init__(self, tried: Tried, inbox: Inbox, output: Output, lines: RankLines) -> None:
        self._tried, self._inbox, self._output, self._lines = tried, inbox, output, lines

    def stream(self, name: str, text: str) -> None:
        """Show text with the trial's label."""
        self._inbox.leave(lambda: self._lines.stream(self._tried.trial.label, name, text))

    def display(self, content: dict[str, Any], *, update: bool) -> None:
        """Show a display message; writes to open files are kept with the trial."""
        if WRITTEN in content["data"]:
            self._inbox.leave(lambda: self._tried.written.append(content))
            return
        if not update and "text/plain" in content["data"]:
            self.stream("stdout", "\n")  # prefixes the display with the trial's label
        self._inbox.leave(lambda: self._output.display(content, update=update))

    def clear(self, *, wait: bool) -> None:
        """Do nothing, as other trials share the output."""

    def progress(self, text: str) -> None:
        """Note what the trial waits for."""
        self._tried.detail = text

    def say(self, text: str) -> None:
        """Show a message with the trial's label."""
        self._inbox.leave(lambda: self._output.say(f"[{self._tried.trial.label}] {text}"))

    def show_run(self, run: ViewedRun) -> None:
        """Store the trial's run."""
        self._tried.run = run

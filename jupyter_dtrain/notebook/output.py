"""Where a run's output goes: into the cell, as if the cell had printed it here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from IPython.display import DisplayHandle, clear_output, publish_display_data

from ..capture import loggers
from ..integrations.registry import displays
from ..serialization import open_files
from .display import show_notice
from .front_end import is_notebook
from .terminal_line import TerminalLine

if TYPE_CHECKING:
    from ..runs.record import ViewedRun
    from .run_view import RunView

_FOR_THE_NOTEBOOK = {loggers.RECORD: loggers.handle, open_files.WRITTEN: open_files.handle}


def show(text: object) -> None:
    """Show `text`, as if the cell had printed it."""
    CellOutput().stream("stdout", f"{text}\n")


class CellOutput:
    """Shows things in the cell that is running. Used by the thread that runs it: output of others would land anywhere.

    Parameters
    ----------
    view : RunView, optional
        What the cell shows of its run.
    """

    def __init__(self, view: RunView | None = None) -> None:
        self._view = view
        self._progress: DisplayHandle | None = None
        self._line = TerminalLine(sys.stderr)

    def stream(self, name: str, text: str) -> None:
        """Show `text` printed to ``stdout`` or ``stderr``."""
        self._line.clear()
        stream = sys.stderr if name == "stderr" else sys.stdout
        stream.write(text)
        stream.flush()

    def display(self, content: dict[str, Any], *, update: bool) -> None:
        """Show a rich display, or show it in the place of an earlier one: the content of a ``display_data`` message.

        Some are no displays: what the cell has logged goes to handlers of the notebook, what it has written to its open files.
        """
        for kind, handle in {**_FOR_THE_NOTEBOOK, **displays()}.items():
            if kind in content["data"]:
                handle(content["data"][kind])
                return
        publish_display_data(content["data"], content.get("metadata") or {}, transient=content.get("transient") or {}, update=update)

    def clear(self, *, wait: bool) -> None:
        """Clear what was shown."""
        clear_output(wait=wait)
        if self._view is not None:
            self._view.cleared()

    def show_run(self, run: ViewedRun) -> None:
        """Show how the run is doing."""
        if not is_notebook():
            self._line.show_run(run)
        if self._view is not None:
            self._view.update(run)

    def say(self, text: str) -> None:
        """Show a line of this project's own."""
        if is_notebook():
            show_notice(text)
        else:
            self.stream("stderr", text + "\n")

    def progress(self, text: str) -> None:
        """Show how far something is, in one line that is written over."""
        if not is_notebook():
            self._line.show(text)
            return
        data = {"text/plain": text}
        if self._progress is None:
            self._progress = DisplayHandle()
            self._progress.display(data, raw=True)
        else:
            self._progress.update(data, raw=True)

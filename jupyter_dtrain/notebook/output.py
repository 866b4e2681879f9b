"""Show a run's output in the cell, as if the cell had printed it here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from IPython.display import DisplayHandle, clear_output, publish_display_data

from ..capture import log_records
from ..integrations.registry import displays
from ..serialization import open_files
from .display import show_notice
from .front_end import is_notebook
from .terminal_line import TerminalLine

if TYPE_CHECKING:
    from ..runs.record import ViewedRun
    from .run_view import RunView

_FOR_THE_NOTEBOOK = {log_records.RECORD: log_records.handle, open_files.WRITTEN: open_files.handle}


def show(text: object) -> None:
    """Print `text`."""
    CellOutput().stream("stdout", f"{text}\n")


class CellOutput:
    """Show output in the running cell. Only for the thread that runs the cell, as Jupyter assigns output by thread.

    Parameters
    ----------
    view : RunView, optional
        The cell's view of its run.
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
        """Show the content of a ``display_data`` message, or update an earlier display with it.

        Some messages only look like displays: they carry log records for the notebook's handlers, and writes to its open files.
        """
        for kind, handle in {**_FOR_THE_NOTEBOOK, **displays()}.items():
            if kind in content["data"]:
                handle(content["data"][kind])
                return
        publish_display_data(content["data"], content.get("metadata") or {}, transient=content.get("transient") or {}, update=update)

    def clear(self, *, wait: bool) -> None:
        """Clear the output."""
        clear_output(wait=wait)
        if self._view is not None:
            self._view.cleared()

    def show_run(self, run: ViewedRun) -> None:
        """Show the state of the run."""
        if not is_notebook():
            self._line.show_run(run)
        if self._view is not None:
            self._view.update(run)

    def say(self, text: str) -> None:
        """Show a message of this project's own."""
        if is_notebook():
            show_notice(text)
        else:
            self.stream("stderr", text + "\n")

    def progress(self, text: str) -> None:
        """Show progress in a line that the next call overwrites."""
        if not is_notebook():
            self._line.show(text)
            return
        data = {"text/plain": text}
        if self._progress is None:
            self._progress = DisplayHandle()
            self._progress.display(data, raw=True)
        else:
            self._progress.update(data, raw=True)

"""``%debug`` after a cell that failed on the engines: each line is read here, and done where the frames are.

IPython's ``%debug`` and ``%pdb`` both call the shell's `debugger`, which would show this project's frames in the notebook's own process.
Where the last error came from the engines, it looks at the failed rank's instead; everything else stays IPython's.
"""

from __future__ import annotations

import cmd
import sys
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from ..errors import CellError, CellInterrupted, ClusterError, DtrainError, UsageError
from .output import show

if TYPE_CHECKING:
    from ..elastic.failed_run import FailedRun
    from .lazy import LazySession

NO_FRAMES = (
    "There are no frames to look at. Engines keep those of the last cell, where it ended with an error, until the next one begins: not of "
    "runs with --detach, whose engines end with them, and of the trials of --vary only of those that were the last on their engines. "
    "Run the cell again without the option, with what the trial had set in the notebook."
)


class RankDebugger(cmd.Cmd):
    """A prompt whose lines a rank's debugger does.

    Parameters
    ----------
    failed : FailedRun
    rank : int
        Whose frames are looked at.
    """

    prompt = "ipdb> "

    def __init__(self, failed: FailedRun, rank: int) -> None:
        super().__init__(completekey=None)  # type: ignore[arg-type]  # the notebook's own line completes nothing
        self._failed, self._rank = failed, rank

    def onecmd(self, line: str) -> bool:
        """Do a line, and return whether it was the last."""
        text, is_over = self._failed.command(self._rank, line)
        _write(text)
        return is_over


def debug(session: LazySession, shell: InteractiveShell, rank: int | None = None) -> None:
    """Look at the frames of the cell that has failed last, on `rank`, or where the error was.

    Raises
    ------
    UsageError
        There are none.
    """
    failed = session.get().failed_run() if session.exists else None
    if failed is None:
        raise UsageError(NO_FRAMES)
    rank = failed.rank_at_fault(rank)
    text, is_over = failed.begin(rank, str(shell.colors))
    if is_over:
        raise UsageError(text.rstrip())
    show(failed.headline(rank))
    _write(text)
    try:
        RankDebugger(failed, rank).cmdloop()
    except KeyboardInterrupt:
        _write("\nLeft. The frames are kept: %debug looks at them again.\n")


def debug_last_error(session: LazySession, shell: InteractiveShell) -> bool:
    """Do so where the last error came from the engines; return whether it did."""
    if not isinstance(getattr(sys, "last_value", None), CellError | CellInterrupted | ClusterError):
        return False
    try:
        debug(session, shell)
    except DtrainError as error:
        show(error)
    return True


def _write(text: Any) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()

"""``%debug`` after a cell failed on engines: lines are read here, and executed where the frames are.

IPython's ``%debug`` and ``%pdb`` call the shell's `debugger`, which would show this project's frames in the kernel. If the last error came
from engines, the failed rank's frames are used instead; everything else is left to IPython.
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
    """A prompt whose lines a rank's debugger executes.

    Parameters
    ----------
    failed : FailedRun
    rank : int
        The rank whose frames are examined.
    """

    prompt = "ipdb> "

    def __init__(self, failed: FailedRun, rank: int) -> None:
        super().__init__(completekey=None)  # type: ignore[arg-type]  # input lines of notebooks have no completion
        self._failed, self._rank = failed, rank

    def onecmd(self, line: str) -> bool:
        """Execute a line; return whether the session is over."""
        text, is_over = self._failed.command(self._rank, line)
        _write(text)
        return is_over


def debug(session: LazySession, shell: InteractiveShell, rank: int | None = None) -> None:
    """Debug the cell that failed last, on `rank`, by default the one with the error.

    Raises
    ------
    UsageError
        There are no frames.
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
    """Call :func:`debug` if the last error came from engines; return whether it did."""
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

"""What the cell asks of the system, asked of rank 0's: where all ranks ask, in the cell's own code and thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from ..comm.collectives import of_rank0
from ..current_run import current_run
from ..timing import OTHER
from ..user_frames import is_users


class CommonAnswers:
    """Those of one run. Made in the cell's thread.

    Parameters
    ----------
    rank : int
    """

    def __init__(self, rank: int) -> None:
        self._is_first, self._thread = rank == 0, threading.get_ident()

    def all_ask(self, *, through: Collection[str] = ()) -> bool:
        """Return whether the user's code has called what asks this, on all ranks.

        Not while a sample is loaded, in a model's call or a backward pass, in another thread, or where rank 0 is alone.

        Parameters
        ----------
        through : collection of str
            Files whose code may be between.
        """
        timing, branches = current_run.timing, current_run.rank0_branches
        if timing is None or timing.part != OTHER or threading.get_ident() != self._thread:
            return False
        return (branches is None or branches.line() is None) and _user_calls({__file__, *through})

    def same(self, own: Any) -> Any:
        """Return rank 0's `own`. A collective, of which rank 0 waits for nobody."""
        return of_rank0(own)

    def of_first(self, ask: Callable[[], Any]) -> Any:
        """Return what `ask` returns on rank 0, which alone calls it, or raise what it raises there. A collective, as :meth:`same`."""
        error: Exception | None = None
        answer = None
        if self._is_first:
            try:
                answer = ask()
            except Exception as raised:
                error = raised
        error, answer = of_rank0((error, answer))
        if error is not None:
            raise error
        return answer


def _user_calls(through: Collection[str]) -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in through:
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)

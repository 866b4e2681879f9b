"""What the cell asks of the system, asked of rank 0's: where all ranks ask, in the cell's own code and thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch.distributed as dist

from ..comm.collectives import all_gather_object, of_rank0
from ..comm.process_group import shared_memory
from ..current_run import current_run
from ..timing import OTHER
from ..user_frames import is_users

PATHLIB = frozenset(method.__code__.co_filename for method in (Path.glob, Path.iterdir, Path.unlink))
"""Files whose code calls `os` for `pathlib`."""
_PLAIN = "for the time or random bytes"


class CommonAnswers:
    """Those of one run. Made in the cell's thread.

    Attributes
    ----------
    is_first : bool
        Whether this is rank 0 of the run.
    """

    def __init__(self) -> None:
        self.is_first = not dist.is_initialized() or dist.get_rank() == 0
        self._thread = threading.get_ident()

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
        return (branches is None or branches.line() is None) and _user_calls(through)

    def same(self, own: Any) -> Any:
        """Return rank 0's `own`. A collective, of which rank 0 waits for nobody."""
        return _checked(of_rank0(own), None)

    def of_first(self, what: str, ask: Callable[[], Any], *, changes: bool = False) -> Any:
        """Return what `ask` returns on rank 0, which alone calls it, or raise what it raises there. A collective, as :meth:`same`.

        Parameters
        ----------
        what : str
            What is asked, the same on all ranks.
        ask : callable
        changes : bool
            Whether it changes what others may be about to read: rank 0 waits until all have come here.

        Raises
        ------
        RuntimeError
            Rank 0 has asked something else.
        """
        if changes:
            all_gather_object(what, shared_memory())
        answer = None
        if self.is_first:
            try:
                answer = _Answer(what, ask(), None)
            except Exception as error:
                answer = _Answer(what, None, error)
        answer = _checked(of_rank0(answer), what)
        if answer.error is not None:
            raise answer.error
        return answer.value


class _Answer(NamedTuple):
    what: str
    value: Any
    error: Exception | None


def _checked(answer: Any, what: str | None) -> Any:
    """Return rank 0's answer, which is to be one to `what`, or to no question that has a name."""
    asked = answer.what if isinstance(answer, _Answer) else None
    if asked != what:
        raise RuntimeError(
            f"The ranks are at different lines of the cell: rank 0 asks {asked or _PLAIN}, this one {what or _PLAIN}. "
            "Does the cell branch on something that differs between ranks (`datetime.now()`, a file that one host alone has)?"
        )
    return answer


def _user_calls(through: Collection[str]) -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in through:
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)

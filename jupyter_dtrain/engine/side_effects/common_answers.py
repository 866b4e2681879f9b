"""Answers of the system that all ranks take from rank 0: where all of them ask, in the cell's own code and thread."""

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
"""Files whose code calls `os` on behalf of `pathlib`."""
_PLAIN = "for the time or random bytes"


class CommonAnswers:
    """The common answers of one run. Made in the cell's thread.

    Attributes
    ----------
    is_first : bool
        Whether this is rank 0 of the run.
    """

    def __init__(self) -> None:
        self.is_first = not dist.is_initialized() or dist.get_rank() == 0
        self._thread = threading.get_ident()

    def all_ask(self, *, through: Collection[str] = ()) -> bool:
        """Return whether the user's code makes the present call on all ranks.

        Not while a sample is loaded, in a model's call or a backward pass, in another thread, or where rank 0 is alone.

        Parameters
        ----------
        through : collection of str
            Files whose code may be between the user's and the caller's.
        """
        timing, branches = current_run.timing, current_run.rank0_branches
        if timing is None or timing.part != OTHER or threading.get_ident() != self._thread:
            return False
        return (branches is None or branches.line() is None) and _user_calls(through)

    def same(self, own: Any) -> Any:
        """Return rank 0's `own`. Collective, but rank 0 does not wait."""
        return _checked(of_rank0(own), None)

    def of_first(self, what: str, ask: Callable[[], Any], *, changes: bool = False) -> Any:
        """Call `ask` on rank 0 alone, and return or raise on all ranks what it returns or raises. Collective, as :meth:`same`.

        Parameters
        ----------
        what : str
            The question, the same on all ranks.
        ask : callable
        changes : bool
            Whether it changes what other ranks may still read: rank 0 then waits until all ranks are here.

        Raises
        ------
        RuntimeError
            Rank 0 has asked another question.
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
    """Return rank 0's answer, after checking that it is one to `what`."""
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

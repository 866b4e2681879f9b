"""Notes to the user about how the cell was run: one line each, shown once, with the line of the cell."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from torch.distributed import distributed_c10d

from ...protocol import Message, Notice, Standing
from ..backward import gradient_sync
from ..comm.rank_store import wait_for
from ..tensor import functional_collectives, redistribute
from ..user_frames import is_users, users_frames


class Notices:
    """Shows notes to the user, from rank 0.

    Parameters
    ----------
    emit : callable
        Sends a message.
    rank : int
    """

    def __init__(self, emit: Callable[[Message], None], *, rank: int) -> None:
        self._emit = emit
        self._rank = rank
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """Show `text`, unless it was shown before."""
        if self._rank == 0 and text not in self._said:
            self._said.add(text)
            self._emit(Notice(rank=self._rank, text=text))

    @staticmethod
    def location() -> str:
        """Return `` (line 3)`` or `` (line 3, in Net.forward)`` for the user's code that is running, or an empty string."""
        frame = next(users_frames(), None)
        if frame is None:
            return ""
        function = ".".join(part for part in frame.f_code.co_qualname.split(".") if not part.startswith("<"))  # without <locals>, <lambda>
        return f" (line {frame.f_lineno}, in {function})" if function else f" (line {frame.f_lineno})"


# Where a rank is in the user's code, told while it is busy: what waiting for ever looks like from inside.

_WAITING = frozenset(module.__file__ for module in (distributed_c10d, functional_collectives, redistribute, gradient_sync))
_AT_END: set[CodeType] = set()
_Function = TypeVar("_Function", bound=Callable[..., Any])


def at_end(function: _Function) -> _Function:
    """Decorate `function` so that a rank in it counts as at the end of the cell, where global tensors are gathered."""
    _AT_END.add(function.__code__)
    return function


def standing(rank: int) -> Standing | None:
    """Return the user's line that the main thread runs, 0 at the end of the cell; ``None`` elsewhere. Called on another thread."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    waiting = False
    while isinstance(frame, FrameType):  # see `BusiestLine`
        name = frame.f_code.co_filename
        if is_users(name):
            return Standing(rank=rank, filename=name, line=frame.f_lineno, function=frame.f_code.co_name, waiting=waiting)
        if frame.f_code in _AT_END:
            return Standing(rank=rank, filename="", line=0, function="", waiting=True)
        waiting |= name in _WAITING or frame.f_code is wait_for.__code__
        frame = frame.f_back
    return None

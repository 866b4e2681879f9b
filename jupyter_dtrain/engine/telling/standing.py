"""Where a rank is in the user's code, told while it is busy: what waiting for ever looks like from inside."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from ...protocol import Standing
from ..whose import is_users

_WAITING = ("distributed_c10d.py", "engine/view/exchange.py", "engine/backward/gradients.py")
_AT_END = ("engine/training.py", "settle")  # where the ranks put together what spans them
_WAITS_IN_CONTROL = ("engine/control.py", "_wait")  # all else in there is done at once


def standing(rank: int) -> Standing | None:
    """Return the user's line that the main thread is in, line 0 at the end of the cell; ``None`` elsewhere. Called on another thread."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    waiting = False
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            return Standing(rank=rank, filename=name, line=frame.f_lineno, function=frame.f_code.co_name, waiting=waiting)
        path = name.replace("\\", "/")
        if path.endswith(_AT_END[0]) and frame.f_code.co_name == _AT_END[1]:
            return Standing(rank=rank, filename="", line=0, function="", waiting=True)
        waiting |= path.endswith(_WAITING) or (path.endswith(_WAITS_IN_CONTROL[0]) and frame.f_code.co_name == _WAITS_IN_CONTROL[1])
        frame = frame.f_back
    return None

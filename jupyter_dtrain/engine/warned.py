"""The lines that warnings name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import dropwhile
from traceback import walk_stack
from types import FrameType
from typing import Any
from unittest import mock

from .cell import is_ours


@contextmanager
def warnings_of_callers() -> Iterator[None]:
    """Let a warning that arises behind a function of this project name the line that called it, as it would without."""
    show_as_it_is = warnings.showwarning

    def show(message: Any, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
        caller = _caller(filename) if is_ours(filename) else None
        if caller is None:
            show_as_it_is(message, category, filename, lineno, *rest)
        else:
            show_as_it_is(message, category, caller.f_code.co_filename, caller.f_lineno)

    with mock.patch.object(warnings, "showwarning", show):
        yield


def _caller(filename: str) -> FrameType | None:
    """Return the frame that called into this project, by way of the function in `filename` that is running."""
    stack = (frame for frame, _ in walk_stack(sys._getframe(2)))
    from_there = dropwhile(lambda frame: frame.f_code.co_filename != filename, stack)
    return next((frame for frame in from_there if not is_ours(frame.f_code.co_filename)), None)

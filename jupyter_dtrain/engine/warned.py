"""The lines that warnings name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

_OURS = (str(Path(__file__).parents[1]), mock.__file__)


@contextmanager
def warnings_of_callers() -> Iterator[None]:
    """Let a warning that arises behind a function of this project name the line that called it, as it would without."""
    show_as_it_is = warnings.showwarning

    def show(message: Any, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
        caller = _caller(filename) if filename.startswith(_OURS) else None
        if caller is None:
            show_as_it_is(message, category, filename, lineno, *rest)
        else:
            show_as_it_is(message, category, caller.f_code.co_filename, caller.f_lineno)

    with mock.patch.object(warnings, "showwarning", show):
        yield


def _caller(filename: str) -> FrameType | None:
    """Return the frame that called into this project, by way of the function in `filename` that is running."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != filename:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame

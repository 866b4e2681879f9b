"""Tell whose code a file is: the user's, a library's, or this project's."""

from __future__ import annotations

import sys
import unittest
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

_LIBRARIES = frozenset(("site-packages", "dist-packages", "lib-dynload", Path(unittest.__file__).parents[1].name))
OURS = str(Path(__file__).parents[1])
"""The folder of this project's code."""


def is_ours(filename: str) -> bool:
    """Return whether a file belongs to this project, or is `unittest.mock`, with which it patches functions."""
    return filename.startswith(OURS) or filename.endswith("unittest/mock.py")


def users_line() -> tuple[str, int] | None:
    """Return the file and line of the innermost running frame of user code; ``None`` if there is none."""
    frame = next(users_frames(), None)
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def users_frames() -> Iterator[FrameType]:
    """Yield the running frames of user code, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


@cache
def is_users(filename: str) -> bool:
    """Return whether a file is user code: neither a library's nor this project's."""
    return not filename.startswith((OURS, "<frozen", "<string>")) and not _LIBRARIES.intersection(Path(filename).parts)


def is_users_module(name: str) -> bool:
    """Return whether a module is the user's: the notebook's, or one beside it. A module sent by value is not imported in this process."""
    module = sys.modules.get(name)
    if name == "__main__" or module is None:
        return True
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_users(file)


def place_of(frame: FrameType) -> tuple[int | None, int]:
    """Return the current line and column of `frame`; no line if Python does not know it."""
    line, _, column, _ = [*frame.f_code.co_positions()][frame.f_lasti // 2]
    return line, column or 0

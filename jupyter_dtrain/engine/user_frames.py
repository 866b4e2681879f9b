"""Whose code a file is: the user's own, a library's, or this project's."""

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
    """Return whether a file is this project's, or the one by which it takes the places of others' functions."""
    return filename.startswith(OURS) or filename.endswith("unittest/mock.py")


def users_line() -> tuple[str, int] | None:
    """Return the file and line of the user's own code that is running: the innermost frame that is neither ours nor a library's."""
    frame = next(users_frames(), None)
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def users_frames() -> Iterator[FrameType]:
    """Yield the frames of the user's own code that is running, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


@cache
def is_users(filename: str) -> bool:
    """Return whether a file is the user's own: neither a library's nor this project's."""
    return not filename.startswith((OURS, "<frozen", "<string>")) and not _LIBRARIES.intersection(Path(filename).parts)


def is_users_module(name: str) -> bool:
    """Return whether a module is the user's own: the notebook's, or one beside it. What is sent by value is no module of this process."""
    module = sys.modules.get(name)
    if name == "__main__" or module is None:
        return True
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_users(file)


def place_of(frame: FrameType) -> tuple[int | None, int]:
    """Return the line and column of what `frame` is at; no line where Python does not know it."""
    line, _, column, _ = [*frame.f_code.co_positions()][frame.f_lasti // 2]
    return line, column or 0

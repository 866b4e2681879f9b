"""What the cell asks of the system is the same on all ranks: the time, random bytes, what is in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .common_answers import CommonAnswers
from .common_clock import CommonClock
from .common_folders import CommonFolders


@contextmanager
def asked_alike() -> Iterator[None]:
    """Give all ranks rank 0's answers, until the end of the ``with`` block. Its thread is the cell's."""
    answers = CommonAnswers()
    with CommonClock(answers).installed(), CommonFolders(answers, Path.cwd()).installed():
        yield

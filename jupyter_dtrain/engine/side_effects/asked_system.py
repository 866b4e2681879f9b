"""What the cell asks of the system is the same on all ranks: the time, random bytes, what is in a folder, what a command returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .common_answers import CommonAnswers
from .common_clock import CommonClock
from .common_commands import CommonCommands
from .common_folders import CommonFolders


@contextmanager
def asked_alike(rank: int) -> Iterator[None]:
    """Give all ranks rank 0's answers, until the end of the ``with`` block. Its thread is the cell's."""
    answers = CommonAnswers(rank)
    with CommonClock(answers).installed(), CommonFolders(answers, Path.cwd()).installed(), CommonCommands(answers).installed():
        yield

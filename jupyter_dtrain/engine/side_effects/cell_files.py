"""Connects, on each rank, the parts that let the cell's files be written once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from torch.distributed.distributed_c10d import _get_default_store

from .common_answers import CommonAnswers
from .common_changes import CommonChanges
from .common_commands import CommonCommands
from .common_databases import CommonDatabases
from .common_folders import CommonFolders
from .file_journal import FileLog
from .low_level_writes import other_ways, own_database
from .made_folders import CellStart, FolderChannel
from .temp_dirs import TemporaryFolders
from .written_files import OwnFiles


@contextmanager
def written_once(rank: int, start: CellStart | None, *, log: FileLog | None, temporary: TemporaryFolders, alike: bool) -> Iterator[None]:
    """Let rank 0 alone write the cell's files, in the ``with`` block.

    Parameters
    ----------
    rank : int
    start : CellStart, optional
        What the ranks have agreed on; ``None`` for a single rank.
    log : FileLog, optional
        Of rank 0.
    temporary : TemporaryFolders
    alike : bool
        Whether all ranks do the same, because they see the same numbers.
    """
    with nullcontext() if log is None else log.installed(), temporary.installed():
        if start is None:
            yield
            return
        word = FolderChannel(_get_default_store(), f"folders/{start.time}", Path.cwd())
        own = None if rank == 0 else OwnFiles(start=start, word=word, temporary=temporary)
        with word.reported() if own is None else own.installed(other_ways(own)), _done_once(own, word.folder) if alike else nullcontext():
            yield


@contextmanager
def _done_once(own: OwnFiles | None, folder: str) -> Iterator[None]:
    """Let rank 0 change files and list folders first, or for all ranks."""
    answers = CommonAnswers()
    place, on_run = (None, None) if own is None else (partial(own_database, own), own.look_again)
    with (
        CommonDatabases(answers, folder, place=place).installed(),
        CommonChanges(answers, folder).installed(),
        CommonFolders(answers, folder).installed(),
        CommonCommands(answers, on_run=on_run).installed(),
    ):
        yield

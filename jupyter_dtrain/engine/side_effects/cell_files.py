"""The cell's files, written once: what each rank does for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from torch.distributed.distributed_c10d import _get_default_store

from .common_answers import CommonAnswers
from .common_databases import CommonDatabases
from .file_journal import FileLog
from .low_level_writes import other_ways, own_database
from .made_folders import CellStart, FolderChannel
from .temp_dirs import TemporaryFolders
from .written_files import OwnFiles


@contextmanager
def written_once(*, rank: int, start: CellStart | None, log: FileLog | None, temporary: TemporaryFolders) -> Iterator[None]:
    """Keep the files of this rank apart from rank 0's, until the end of the ``with`` block.

    Parameters
    ----------
    rank : int
    start : CellStart, optional
        What the ranks have agreed on; ``None``: there are no others.
    log : FileLog, optional
        Of rank 0.
    temporary : TemporaryFolders
    """
    with nullcontext() if log is None else log.installed(), temporary.installed():
        if start is None:
            yield
            return
        word = FolderChannel(_get_default_store(), f"folders/{start.time}", Path.cwd())
        own = None if rank == 0 else OwnFiles(start=start, word=word, temporary=temporary)
        databases = CommonDatabases(CommonAnswers(rank), word.folder, place=None if own is None else partial(own_database, own))
        with word.reported() if own is None else own.installed(other_ways(own)), databases.installed():
            yield

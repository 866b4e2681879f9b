"""The cell's files, written once: what each rank does for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from torch.distributed.distributed_c10d import _get_default_store

from .file_log import FileLog
from .files import OwnFiles
from .folders import FolderWord
from .temporary import TemporaryFolders


@contextmanager
def written_once(*, rank: int, started: int | None, log: FileLog | None, temporary: TemporaryFolders) -> Iterator[None]:
    """Keep the files of this rank apart from rank 0's, until the end of the ``with`` block.

    Parameters
    ----------
    rank : int
    started : int, optional
        When the cell was about to run, in ns since the epoch, the same on all ranks; ``None``: there are no others.
    log : FileLog, optional
        Of rank 0.
    temporary : TemporaryFolders
    """
    with nullcontext() if log is None else log.installed(), temporary.installed():
        if started is None:
            yield
            return
        here, word = Path.cwd(), FolderWord(_get_default_store(), f"folders/{started}")
        with word.said(here) if rank == 0 else OwnFiles(here, started=started, word=word, temporary=temporary).installed():
            yield

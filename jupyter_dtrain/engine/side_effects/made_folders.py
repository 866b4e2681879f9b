"""Reports of rank 0 about each folder that the cell makes: that it is made, or the error.

The other ranks make no folders, and the disk would not tell them the result: rank 0 may not be there yet, may have removed the folder
again, or may be on another host. So it reports in the store of the process group, without waiting for the others. Before the cell
begins, ranks on other hosts get the folders that exist already.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # not in torch's own list of exports

from ...protocol import HOST_VARIABLE
from ...system.patches import patched
from ..comm.collectives import of_rank0
from .asked_paths import asked_path, is_within_open_folder

A_FOLDER = errno.EISDIR
"""Reported for ``EEXIST`` if a folder is there, as other ranks may not see it."""
MOST_ENTRIES = 1000
"""Most files and folders that are visited to find the folders that exist already: a few milliseconds."""


@dataclass(frozen=True)
class CellStart:
    """What ranks agree on about files when the cell begins.

    Attributes
    ----------
    time : int
        In ns since the epoch, the same on all ranks.
    is_far : bool
        Whether this rank is on another host than rank 0, whose disk it may not see.
    folders : tuple of str
        Names of folders below the cell's folder that exist on rank 0's host, for ranks on other hosts.
    """

    time: int
    is_far: bool = False
    folders: tuple[str, ...] = ()

    @classmethod
    def agreed(cls, rank: int, gathered: Callable[[Any], list[Any]]) -> CellStart:
        """Return the same time and folders on all ranks. Collective: `gathered` returns every rank's value, in rank order."""
        said = gathered((time.time_ns(), os.environ.get(HOST_VARIABLE, "")))
        started, hosts = max(clock for clock, _ in said), [host for _, host in said]
        if len(set(hosts)) == 1:
            return cls(started)
        # Tens of kilobytes of names that are much alike, in each cell.
        names = of_rank0(zlib.compress(os.fsencode("\0".join(folders_below(Path.cwd())))) if rank == 0 else b"")
        folders = os.fsdecode(zlib.decompress(names))
        return cls(started, is_far=hosts[rank] != hosts[0], folders=tuple(folders.split("\0")) if folders else ())


def folders_below(folder: Path) -> tuple[str, ...]:
    """Return the names of folders below `folder`, the nearest first, at most as many as `MOST_ENTRIES` allows."""
    found: list[str] = []
    due, left = deque([""]), MOST_ENTRIES
    while due and left > 0:
        above = due.popleft()
        with suppress(OSError), os.scandir(folder / above) as entries:  # it is gone, or may not be read
            looked_at = list(islice(entries, left))
            left -= len(looked_at)
            for entry in looked_at:
                if entry.is_dir():
                    found.append(name := os.path.join(above, entry.name))  # noqa: PTH118  # of strings
                    if not entry.is_symlink():
                        due.append(name)
    return tuple(found)


class FolderChannel:
    """Sends and receives these reports on one rank during a run.

    Parameters
    ----------
    store : torch.distributed.Store
        Shared by the ranks.
    topic : str
        Equal on all ranks, and different in each run.
    folder : Path
        The working folder of the cell. On a host without the notebook's folder it differs from rank 0's.

    Attributes
    ----------
    folder : str
        Prefix of the absolute paths of what is in it.
    """

    def __init__(self, store: Store, topic: str, folder: Path) -> None:
        self.folder = f"{folder.resolve()}{os.sep}"
        self._store, self._topic = store, topic
        self._times: Counter[str] = Counter()  # that the cell has made each folder, or tried to
        self._process = os.getpid()
        self._making = threading.local()  # what is made with the folders above it

    @contextmanager
    def with_those_above(self) -> Iterator[None]:
        """Report no single folder that this thread makes in the ``with`` block."""
        self._making.several = True
        try:
            yield
        finally:
            self._making.several = False

    @property
    def makes_several(self) -> bool:
        """Whether this thread makes a folder together with its parents."""
        return bool(getattr(self._making, "several", False))

    def topics_of(self, call: str, path: str) -> list[str]:
        """Return the keys of the next report about the folder `path`, made by a `call` such as ``"mkdir"``.

        One key is the path relative to the cell's folder, which may differ between hosts; the other is the absolute path.
        """
        found = []
        for name in dict.fromkeys((path.removeprefix(self.folder), path)):
            said = f"{call} {name}"
            self._times[said] += 1
            found.append(f"{self._topic}/{self._times[said]}/{said}")
        return found

    def heard(self, topics: list[str], path: str) -> int | None:
        """Return the ``errno`` that rank 0 has reported, 0 for none; ``None`` while there is no report."""
        if os.getpid() != self._process:  # a loader's worker process has no part in the store, and looks at the disk
            return 0 if Path(path).is_dir() else None
        return next((int(self._store.get(topic)) for topic in topics if self._store.check([topic])), None)

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Report, on rank 0, the result for each folder that the cell makes in the ``with`` block."""
        with patched(os, "mkdir", self._telling("mkdir", os.mkdir)), patched(os, "makedirs", self._telling("makedirs", os.makedirs)):
            yield

    def _telling(self, call: str, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def make(*args: Any, **kwargs: Any) -> None:
            named = args[0] if args else kwargs.get("path", kwargs.get("name"))
            asked = None if self.makes_several or is_within_open_folder(kwargs) else asked_path(named)
            if asked is None or not asked.startswith(self.folder) or os.getpid() != self._process:
                original(*args, **kwargs)
                return
            error = 0
            try:
                if call == "mkdir":
                    original(*args, **kwargs)
                else:
                    with self.with_those_above():
                        original(*args, **kwargs)
            except OSError as raised:
                error = A_FOLDER if isinstance(raised, FileExistsError) and Path(asked).is_dir() else raised.errno or 0
                raise
            finally:
                for topic in self.topics_of(call, asked):
                    self._store.set(topic, str(error))

        return make

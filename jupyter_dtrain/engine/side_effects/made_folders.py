"""What rank 0 says of each folder that the cell makes: that it is made, or why not.

The other ranks make none, and a look at the disk would not tell them how rank 0 has fared: it may not have come there yet, may have
removed the folder again, or its disk may be another host's. So it says so in the store of their group. It never waits for the others.
Before the cell begins, ranks of other hosts are told which folders are there from before.
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
"""Said for ``EEXIST`` where there is a folder: others may not see that."""
MOST_ENTRIES = 1000
"""Files and folders that are looked at, at most, for folders that are there from before: a few milliseconds."""


@dataclass(frozen=True)
class CellStart:
    """What ranks know of files when the cell begins.

    Attributes
    ----------
    time : int
        In ns since the epoch, the same on all ranks.
    is_far : bool
        Whether this rank is on another host than rank 0, whose disk it may not see.
    folders : tuple of str
        Names of folders below the cell's folder that are there on rank 0's host, for ranks that are far.
    """

    time: int
    is_far: bool = False
    folders: tuple[str, ...] = ()

    @classmethod
    def agreed(cls, rank: int, gathered: Callable[[Any], list[Any]]) -> CellStart:
        """Let all ranks know the same. Collective: `gathered` returns every rank's value, in rank order."""
        said = gathered((time.time_ns(), os.environ.get(HOST_VARIABLE, "")))
        started, hosts = max(clock for clock, _ in said), [host for _, host in said]
        if len(set(hosts)) == 1:
            return cls(started)
        # Tens of kilobytes of names that are much alike, in each cell.
        names = of_rank0(zlib.compress(os.fsencode("\0".join(folders_below(Path.cwd())))) if rank == 0 else b"")
        folders = os.fsdecode(zlib.decompress(names))
        return cls(started, is_far=hosts[rank] != hosts[0], folders=tuple(folders.split("\0")) if folders else ())


def folders_below(folder: Path) -> tuple[str, ...]:
    """Return the names of folders below `folder`, the nearest first, of which there may be more: see `MOST_ENTRIES`."""
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
    """One rank's part in it, for the time of a run.

    Parameters
    ----------
    store : torch.distributed.Store
        Shared by the ranks.
    topic : str
        The same on all ranks, and another in each run.
    folder : Path
        What the cell's relative paths begin at. On a host that has not the notebook's folder it is another than rank 0's.

    Attributes
    ----------
    folder : str
        Its path, up to the names of what is in it.
    """

    def __init__(self, store: Store, topic: str, folder: Path) -> None:
        self.folder = f"{folder.resolve()}{os.sep}"
        self._store, self._topic = store, topic
        self._times: Counter[str] = Counter()  # that the cell has made each folder, or tried to
        self._process = os.getpid()
        self._making = threading.local()  # what is made with the folders above it

    @contextmanager
    def with_those_above(self) -> Iterator[None]:
        """Say of no single folder that this thread makes until the end of the ``with`` block."""
        self._making.several = True
        try:
            yield
        finally:
            self._making.several = False

    @property
    def makes_several(self) -> bool:
        """Whether this thread makes a folder with those above it."""
        return bool(getattr(self._making, "several", False))

    def topics_of(self, call: str, path: str) -> list[str]:
        """Return what the next word on the folder `path` is said under, made by a `call` such as ``"mkdir"``.

        It has a name as a path of the cell's folder too, which may be another on each host, where a whole path is the same on all.
        """
        found = []
        for name in dict.fromkeys((path.removeprefix(self.folder), path)):
            said = f"{call} {name}"
            self._times[said] += 1
            found.append(f"{self._topic}/{self._times[said]}/{said}")
        return found

    def heard(self, topics: list[str], path: str) -> int | None:
        """Return the number of the error that rank 0 has met, 0 for none; ``None`` while it has said nothing."""
        if os.getpid() != self._process:  # a loader's worker process has no part in the store, and looks at the disk
            return 0 if Path(path).is_dir() else None
        return next((int(self._store.get(topic)) for topic in topics if self._store.check([topic])), None)

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Say, on rank 0, how it fares with the folders that the cell makes, until the end of the ``with`` block."""
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

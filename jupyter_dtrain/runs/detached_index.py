"""Find the process of a detached run by a file in the run's folder, which that process keeps locked while it lives.

A lock cannot be mistaken, as a reused pid could, and is released however the process ends. The module imports nothing heavy, as loading the
extension calls it to list detached runs.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .. import protocol
from ..system.confined import file_below, is_file_below, is_run_id, kind_below, names_below, remove_below

if TYPE_CHECKING:
    from ..protocol import DetachedRun

DEFAULT_FOLDER = Path("dtrain-runs")
"""Default folder of the record of runs, beside the notebook."""
HOST = "host.json"
RESULTS = "results"
MANIFEST = "manifest.json"
TAKEN = "taken"


class HostFile:
    """File that marks this process as the host of a folder's run, until :meth:`remove` or the end of the process.

    Parameters
    ----------
    run_folder : Path
    address : Path
        Socket at which the process listens.
    """

    def __init__(self, run_folder: Path, address: Path) -> None:
        self._path = run_folder / HOST
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        os.write(self._handle, json.dumps({"address": str(address), "pid": os.getpid()}).encode())

    def remove(self) -> None:
        """Delete and unlock the file."""
        self._path.unlink(missing_ok=True)
        os.close(self._handle)


def address_of(run_folder: Path) -> Path | None:
    """Return the address of the process that runs a detached run, ``None`` if there is none."""
    try:
        with file_below(run_folder.parent, run_folder.name, HOST) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # the host is alive
                content = os.read(handle, 1 << 16)
            else:
                return None
        return Path(json.loads(content)["address"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # no file, a foreign one, or one that is just being written
        return None


def forget_results(run_folder: Path) -> None:
    """Delete the results that a run has left in its folder, as it resumes from before them."""
    with suppress(OSError):
        remove_below(run_folder.parent, run_folder.name, RESULTS)


def going(folder: Path) -> list[str]:
    """Return the ids of the running detached runs of a folder, the oldest first."""
    return [run_id for run_id in _run_ids(folder) if address_of(folder / run_id) is not None]


def waiting(folder: Path) -> list[str]:
    """Return the ids of the ended detached runs whose results no kernel has taken yet."""
    return [
        run_id
        for run_id in _run_ids(folder)
        if is_file_below(folder, run_id, RESULTS, MANIFEST) and kind_below(folder, run_id, RESULTS, TAKEN) is None
    ]


def unfollowed(folder: Path) -> list[DetachedRun]:
    """Return the runs of a folder that run without a kernel, or whose results no kernel has taken."""
    alone = [protocol.DetachedRun(run_id=run_id, ended=False) for run_id in going(folder)]
    return alone + [protocol.DetachedRun(run_id=run_id, ended=True) for run_id in waiting(folder)]


def _run_ids(folder: Path) -> list[str]:
    return sorted(filter(is_run_id, names_below(folder)))

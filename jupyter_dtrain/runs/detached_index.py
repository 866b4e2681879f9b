"""Where a detached run is found: by a file in its folder, which the process that runs it holds locked as long as it lives.

A lock needs no pid that another process may have one day, and is let go however a process ends. Imports nothing heavy: loading the
extension looks here for runs to tell of.
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
"""Where runs are recorded, beside the notebook."""
HOST = "host.json"
RESULTS = "results"
MANIFEST = "manifest.json"
TAKEN = "taken"


class HostFile:
    """Says that this process runs the run of a folder, until :meth:`remove` or the end of the process.

    Parameters
    ----------
    run_folder : Path
    address : Path
        Where it listens.
    """

    def __init__(self, run_folder: Path, address: Path) -> None:
        self._path = run_folder / HOST
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        os.write(self._handle, json.dumps({"address": str(address), "pid": os.getpid()}).encode())

    def remove(self) -> None:
        """Say so no longer."""
        self._path.unlink(missing_ok=True)
        os.close(self._handle)


def address_of(run_folder: Path) -> Path | None:
    """Return where the process that runs a detached run listens, ``None`` where there is none."""
    try:
        with file_below(run_folder.parent, run_folder.name, HOST) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # it lives
                content = os.read(handle, 1 << 16)
            else:
                return None
        return Path(json.loads(content)["address"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # none, none of ours, or this moment written
        return None


def forget_results(run_folder: Path) -> None:
    """Remove the results that a run has left there: it goes on from before them."""
    with suppress(OSError):
        remove_below(run_folder.parent, run_folder.name, RESULTS)


def going(folder: Path) -> list[str]:
    """Return the ids of the detached runs of a folder that are going on, the oldest first."""
    return [run_id for run_id in _run_ids(folder) if address_of(folder / run_id) is not None]


def waiting(folder: Path) -> list[str]:
    """Return the ids of the runs that have ended with no kernel to take their results, which are still waiting for one."""
    return [
        run_id
        for run_id in _run_ids(folder)
        if is_file_below(folder, run_id, RESULTS, MANIFEST) and kind_below(folder, run_id, RESULTS, TAKEN) is None
    ]


def unfollowed(folder: Path) -> list[DetachedRun]:
    """Return the runs of a folder that go on without a kernel, or whose results wait for one."""
    alone = [protocol.DetachedRun(run_id=run_id, ended=False) for run_id in going(folder)]
    return alone + [protocol.DetachedRun(run_id=run_id, ended=True) for run_id in waiting(folder)]


def _run_ids(folder: Path) -> list[str]:
    return sorted(filter(is_run_id, names_below(folder)))

"""Hand the kernel's own cells to host processes, and follow detached runs that other kernels have started."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from ..checkpoint.folder import CheckpointFolder
from ..elastic.job import CellJob
from ..elastic.main_thread_output import Output
from ..elastic.run_result import RunResult
from ..errors import CheckpointError, ClusterError, UsageError
from ..options import RunOptions
from ..protocol import RUN_PHASES_ENDED, Command, Reply
from ..runs.detached_index import address_of, going, waiting
from ..runs.record import RunRecord
from ..runs.store import RunStore
from ..serialization.pickler import Packed
from ..transport.base import BlobStore
from ..transport.blob_store import HASHED, BlobFolder
from .connection import Ended, Hello, Interrupt, PeerConnection
from .detached_results import DetachedResult, mark_taken, read_ending, results_of
from .follower import Follower, Views
from .host_start import start_host
from .journal import calls_in, replay
from .mirror import RunMirror

ENDING_LIMIT = timedelta(seconds=60)
"""Time for a disconnected host to write the results and end."""
LOOK = timedelta(seconds=0.05)


class DetachedRuns:
    """The detached runs of one kernel, one at a time.

    Parameters
    ----------
    store : RunStore
    views : Views

    Attributes
    ----------
    is_leaving : callable
        Returns whether the kernel is about to end.
    """

    def __init__(self, store: RunStore, views: Views) -> None:
        self._store, self._views = store, views
        self._follower: Follower | None = None
        self.is_leaving: Callable[[], bool] = lambda: False

    @property
    def is_following(self) -> bool:
        """Whether a run is followed, which takes commands."""
        return self._follower is not None

    def command(self, command: Command) -> Reply:
        """Pass a command of the sidebar to the host of the run."""
        follower = self._follower
        if follower is None:
            raise UsageError("No cell is running.")
        return follower.command(command)

    def run(self, options: RunOptions, work: Callable[[BlobStore], CellJob], *, output: Output) -> RunResult:
        """Run a cell in a host; `work` stores its values in a folder and returns the job."""
        output.progress("starting a process for the run")
        line = start_host(options.cluster, self._store.folder)
        follower = Follower(line, self._views, is_leaving=lambda: self.is_leaving())
        try:
            ready = follower.wait_ready(output)
            if isinstance(ready, Path):
                follower.send(work(BlobFolder(ready, hashed=HASHED)))
        except EOFError:
            raise ClusterError(_died(None)) from None
        except BaseException:
            line.send(Interrupt())
            line.close()
            raise
        ending = self._follow(follower, output, None, ready.folder if isinstance(ready, Ended) else None)
        return _result(ending, follower.mark_returned)

    def attach(self, run: str | None, *, trusted: bool, output: Output) -> tuple[RunResult, Packed]:
        """Follow a detached run to its end, or take the results of one that has ended.

        Parameters
        ----------
        run : str, optional
            Its id or name; by default the last one that is running, or else one whose results have not been fetched.
        trusted : bool
            Load its results even if not signed by you; this may execute arbitrary code.

        Returns
        -------
        result : RunResult
        values : Packed
            Values that the cell started with.

        Raises
        ------
        CheckpointError
            There is no run to follow, and no results to take.
        UsageError
            Another kernel follows it.
        """
        record = self._wanted(run)
        address = address_of(record.folder)
        if address is not None:
            try:
                line = PeerConnection.to(address)
                line.send(Hello(os.getpid()))
            except (OSError, EOFError):  # the host is just ending
                pass
            else:
                follower = Follower(line, self._views, is_leaving=lambda: self.is_leaving())
                ending = self._follow(follower, output, record, None)
                return _result(ending, follower.mark_returned), _values(ending, record)
        self._wait_for_end(record)
        ending = self._from_disk(record, trusted=trusted, output=output)
        return _result(ending, lambda: mark_taken(results_of(record.folder))), _values(ending, record)

    def _follow(self, follower: Follower, output: Output, record: RunRecord | None, folder: Path | None) -> DetachedResult:
        """Follow a run to its end and return its result; `folder` is where its results are if it has ended already."""
        self._follower = follower
        try:
            folder = folder or follower.follow(output)
        except BaseException:
            follower.close()
            raise
        finally:
            self._follower = None
            follower.end_cluster()
        mirror = follower.mirror
        if record is None and mirror is not None:
            record = self._store.get_run(mirror.run_update().run_id)
        if folder is None and record is not None:
            self._wait_for_end(record)
            folder = results_of(record.folder)
        if folder is None or not folder.exists():
            error = _died(record)
            if mirror is not None:
                mirror.end(error)
                output.show_run(mirror)
            raise ClusterError(error)
        return read_ending(folder, None if record is None else record.run_id, trusted=False)

    def _from_disk(self, record: RunRecord, *, trusted: bool, output: Output) -> DetachedResult:
        ending = read_ending(results_of(record.folder), record.run_id, trusted=trusted)
        replay(calls_in(ending.shown), output)
        run = ending.snapshot.run
        assert run is not None
        mirror = RunMirror(run)
        mirror.start(ending.snapshot)
        self._views.start(mirror)
        self._views.on_news()
        output.show_run(mirror)
        return ending

    # -- which -------------------------------------------------------------------------------------------------------

    def _wanted(self, run: str | None) -> RunRecord:
        folder = self._store.folder
        if run is None:
            found = going(folder) or waiting(folder)
            if not found:
                raise CheckpointError("There is no detached run to attach to in this folder.")
            return self._store.get_run(found[-1])
        record = self._store.run_called(run)
        if address_of(record.folder) is None and not results_of(record.folder).exists():
            raise CheckpointError(_not_there(record))
        return record

    def _wait_for_end(self, record: RunRecord) -> None:
        """Wait until the host of a run has written the results and ended."""
        deadline = time.monotonic() + ENDING_LIMIT.total_seconds()
        while address_of(record.folder) is not None and time.monotonic() < deadline:
            time.sleep(LOOK.total_seconds())


def _result(ending: DetachedResult, taken: Callable[[], None]) -> RunResult:
    """Return the result of a run, or raise its error."""
    if ending.result is None:
        taken()
        raise ending.error or ClusterError("The run has left no results.")
    return replace(ending.result, taken=taken)


def _values(ending: DetachedResult, record: RunRecord) -> Packed:
    if ending.values is None:
        raise CheckpointError(f"What {record.run_id} began with was deleted.")
    return ending.values


def _died(record: RunRecord | None) -> str:
    """Return the message for a host that has died."""
    what = "The process of the detached run ended before the cell: it was killed, or the machine ran out of memory."
    if record is None:
        return f"{what} Run the cell again."
    checkpoints = CheckpointFolder(record.folder).newest_first()
    if not checkpoints:
        return f"{what} No checkpoint was on disk yet: run the cell again."
    return f"{what} `%distribute resume {record.run_id}` continues from step {checkpoints[0].step}."


def _not_there(record: RunRecord) -> str:
    """Return the message for a run that cannot be followed."""
    if record.phase not in RUN_PHASES_ENDED:
        return (
            f"{record.run_id} is running in the kernel that started it. Only runs of `%%distribute --detach` can be followed from another."
        )
    text = f"{record.run_id} has ended ({record.phase})and left no results here: they went to the cell that ran it."
    if CheckpointFolder(record.folder).newest_first():
        text += f" `%distribute resume {record.run_id}` continues from its last checkpoint."
    return text

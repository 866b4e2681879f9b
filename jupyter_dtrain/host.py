"""One cell run detached: what a kernel has for its cells, in a process of its own that outlives it.

It is there from the beginning, so when the kernel is killed there is nothing to hand over. To the kernel it is what the kernel is to
JupyterLab: it tells a snapshot and then what is new, and takes commands. The guard of its engines watches it as it watches a kernel.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from .cluster.folders import Folders
from .cluster_options import ClusterOptions
from .detached.connection import SOCKET, Ended, Ready
from .detached.detached_results import DetachedResult, mark_taken, results_of, write_ending
from .detached.server import Kernel, Server
from .elastic.engine_pool import EnginePool
from .elastic.job import CellJob
from .errors import CheckpointError, ClusterError, DtrainError, picklable
from .runs.detached_index import HostFile
from .runs.record import ViewedRun
from .serialization.pickler import Packed
from .session.session import Session
from .system.interpreter import Interrupts
from .transport.base import BlobStore
from .transport.parcel import from_parcel


class Host:
    """Runs the cell of the kernel that `server` has heard of, and sees to it that a kernel gets its results.

    Parameters
    ----------
    server : Server
    runs : Path
        The folder of runs.
    engines : EnginePool
        Those that are starting already, as `options` say.
    folders : Folders
        This process's own.
    """

    def __init__(self, server: Server, runs: Path, engines: EnginePool, options: ClusterOptions, folders: Folders) -> None:
        self._server, self._options, self._folders = server, options, folders
        self._values: Packed | None = None
        self._run_folder: Path | None = None
        self._file: HostFile | None = None
        self._journal = server.journal
        self._journal.on_run = self._begin
        self._session = Session(runs, engines)
        server.serve(self._session)

    def run(self) -> None:
        """Run the cell to its end, and stop when its results are where a kernel finds them."""
        result = error = None
        try:
            result = self._session.run_handed(self._options, self._receive, output=self._journal)
        except BaseException as raised:
            error = picklable(raised, DtrainError)
        with Interrupts(wake=lambda: None):  # nobody gives up the results
            if (kernel := self._server.kernel) is not None:
                self._server.flush(kernel)
            self._session.drain()  # the snapshot has what was drained
            self._deliver(DetachedResult(self._session.snapshot(), result, self._values, error))
        self._session.close()
        if self._file is not None:
            self._file.remove()

    def _receive(self, blobs: BlobStore) -> CellJob:
        self._server.send(Ready(blobs.address))
        work: CellJob | None = self._server.receive()
        if work is None:
            raise ClusterError("The kernel has ended before the run began.")
        self._values = from_parcel(work.parcel, blobs)  # what is mapped outlives the engines
        return replace(work, surroundings=work.surroundings.of_host(work.source))

    def _begin(self, run: ViewedRun) -> None:
        if self._file is None:
            self._run_folder = self._session.runs_folder / run.run_update().run_id
            self._file = HostFile(self._run_folder, self._folders.sockets / SOCKET)

    def _deliver(self, ending: DetachedResult) -> None:
        """Give the results to the kernel that follows the run, or leave them in the run's folder."""
        told = ""
        while True:
            kernel = self._server.kernel
            if kernel is None and self._run_folder is None:
                return  # it has not begun, and nobody asks
            try:
                folder = self._write(ending, kernel)
            except CheckpointError as error:
                self._session.stop_cluster()
                if str(error) != told:
                    told = str(error)
                    self._journal.say(f"{error} They are kept in memory until there is room.")
                self._server.wait_for_change()
                continue
            # Beside, because a kernel that is stopped takes nothing in.
            threading.Thread(target=self._session.stop_cluster, name="dtrain-stop", daemon=True).start()
            kept = folder.parent == self._run_folder
            if kernel is not None:
                self._server.flush(kernel)
                kernel.line.send(Ended(folder))
                if self._server.wait_until_taken(kernel):
                    if kept:
                        mark_taken(folder)
                    return
            if kept:
                return

    def _write(self, ending: DetachedResult, kernel: Kernel | None) -> Path:
        """Write the results where the kernel, or a later one, looks for them, and return where that is.

        The kernel whose cell it is needs less of them, and gets them through shared memory; another one does where the disk is full.
        """
        run_id = "" if self._run_folder is None else self._run_folder.name
        in_memory = results_of(self._folders.blobs)
        attempts: list[tuple[Path, DetachedResult]] = []
        if self._run_folder is not None:
            attempts.append((results_of(self._run_folder), ending))
        if kernel is not None and kernel.begins:
            attempts.insert(0, (in_memory, replace(ending, values=None)))
        elif kernel is not None:
            attempts.append((in_memory, ending))
        error: CheckpointError | None = None
        for folder, content in attempts:
            try:
                write_ending(folder, content, shown=None if folder == in_memory else self._journal.path, run_id=run_id)
            except CheckpointError as raised:
                error = error or raised
            else:
                return folder
        assert error is not None
        raise error

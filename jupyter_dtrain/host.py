"""Run one cell detached, in a process that outlives the kernel.

The process exists from the start, so nothing has to be handed over when the kernel is killed. It serves the kernel as the kernel serves
JupyterLab: it sends a snapshot and then updates, and executes commands. Its engines' guard watches it as it would watch a kernel.
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
    """Run the cell of the kernel that has connected to `server`, and deliver its results to a kernel.

    Parameters
    ----------
    server : Server
    runs : Path
        The folder of runs.
    engines : EnginePool
        Engines that are starting already, with `options`.
    folders : Folders
        Folders of this process.
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
        """Run the cell to its end, and return once its results are where a kernel finds them."""
        result = error = None
        try:
            result = self._session.run_handed(self._options, self._receive, output=self._journal)
        except BaseException as raised:
            error = picklable(raised, DtrainError)
        with Interrupts(wake=lambda: None):  # interrupts must not lose the results
            if (kernel := self._server.kernel) is not None:
                self._server.flush(kernel)
            self._session.drain()  # the snapshot includes what was drained
            self._deliver(DetachedResult(self._session.snapshot(), result, self._values, error))
        self._session.close()
        if self._file is not None:
            self._file.remove()

    def _receive(self, blobs: BlobStore) -> CellJob:
        self._server.send(Ready(blobs.address))
        work: CellJob | None = self._server.receive()
        if work is None:
            raise ClusterError("The kernel has ended before the run began.")
        self._values = from_parcel(work.parcel, blobs)  # the mappings outlive the engines
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
                return  # the run has not begun, and no kernel asks for it
            try:
                folder = self._write(ending, kernel)
            except CheckpointError as error:
                self._session.stop_cluster()
                if str(error) != told:
                    told = str(error)
                    self._journal.say(f"{error} They are kept in memory until there is room.")
                self._server.wait_for_change()
                continue
            # On a thread, as a stopped (SIGSTOP) kernel reads nothing.
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
        """Write the results to where the kernel, or a later one, looks for them, and return the folder.

        The kernel that started the run needs less of them, and gets them through shared memory; another kernel does only if the disk is
        full.
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

"""The kernel's session, made on first use: loading the extension imports neither torch nor ipyparallel.

Only the package `protocol` is imported here, not its names, so that its messages are defined on first use as well.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, cast, get_args

from .. import protocol
from ..runs.detached_index import DEFAULT_FOLDER, unfollowed
from .comm import Telemetry

if TYPE_CHECKING:
    from ..checkpoint.checkpoint_commands import CheckpointShelf
    from ..elastic.engine_pool import EnginePool
    from ..options import RunOptions, View
    from ..protocol import ClusterUpdate, Command, Message, Reply, Snapshot
    from ..runs.archive import RunArchive
    from ..session.session import Session
    from .run_view import RunView


@functools.cache
def _stopped() -> ClusterUpdate:
    return protocol.ClusterUpdate(phase="stopped")


class LazySession:
    """Stand in for the session until it exists, also for the sidebar: no cluster, no run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._archive: RunArchive | None = None
        self._engines: EnginePool | None = None
        self._shelf: CheckpointShelf | None = None
        self._told: ClusterUpdate | None = None  # the last update that the sidebar got before there was a session
        self.telemetry = Telemetry(self)

    @property
    def exists(self) -> bool:
        """Whether the session exists or engines were started for it: a cell that could not be packed leaves only engines."""
        return self._session is not None or self._engines is not None

    def get(self) -> Session:
        """Return the session, made on first use."""
        with self._lock:
            if self._session is None:
                from ..system.torch_internals import require

                require()
                from ..session.session import Session
                from .kernel import is_leaving

                self._session = Session(self._archive.folder if self._archive is not None else None, self._engines)
                self.telemetry.views = self._session
                self._session.on_news = self.telemetry.notify
                self._session.remote.is_leaving = is_leaving
            return self._session

    def run_view(self, view: View | str, *, at_once: bool) -> RunView:
        """Return the view of a run in its cell: see :class:`.RunView`."""
        from .run_view import RunView

        return RunView(cast("View", view), at_once=at_once, has_extension=lambda: self.telemetry.num_listeners > 0)

    def run_names(self) -> list[str]:
        """Return names and ids of the recorded runs, the newest first."""
        runs = self._past_runs().answer(protocol.Command(id="", name="list_runs")).runs
        return [text for run in runs for text in (run.name, run.run_id)]

    def begin_cluster(self, options: RunOptions) -> None:
        """Start engines, if there are none, while this process imports torch and analyses the cell."""
        with self._lock:
            if self._session is None and self._engines is None:
                from ..elastic.engine_pool import EnginePool

                self._engines = EnginePool()
                self._engines.on_update = lambda _update: self.telemetry.notify()
            if self._engines is not None:
                self._engines.prepare(options)

    def close(self) -> None:
        """Stop what the session runs, and close the comms."""
        if self._session is not None:
            self._session.close()
        elif self._engines is not None:
            self._engines.stop()
        if self._archive is not None:
            self._archive.close()
        if self._shelf is not None:
            self._shelf.close()
        self.telemetry.close()

    # -- the sidebar's view before there is a session ------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the current state."""
        return protocol.Snapshot(version=protocol.PROTOCOL_VERSION, cluster=self._cluster, run=None, detached=unfollowed(DEFAULT_FOLDER))

    def drain(self) -> list[Message]:
        """Return what is new since the last call."""
        before, self._told = self._told or _stopped(), self._cluster
        return [] if self._told is before else [self._told]

    @property
    def _cluster(self) -> ClusterUpdate:
        return _stopped() if self._engines is None else self._engines.update

    def command(self, command: Command) -> Reply:
        """Carry out a command."""
        if command.name in get_args(protocol.CheckpointCommand):
            return self._checkpoints().answer(command)
        if command.name not in get_args(protocol.SessionCommand):  # about the record, which needs no session
            return self._past_runs().answer(command)
        if not self.exists and command.name != "start_cluster":
            return protocol.Reply(id=command.id, ok=False, message="No engines are running.")
        return self.get().command(command)

    def _past_runs(self) -> RunArchive:
        with self._lock:
            if self._archive is None:
                from ..runs.archive import RunArchive

                self._archive = RunArchive(self._session.runs_folder if self._session is not None else None)
            return self._archive

    def _checkpoints(self) -> CheckpointShelf:
        folder = self._past_runs().folder
        with self._lock:
            if self._shelf is None:
                from ..checkpoint.checkpoint_commands import CheckpointShelf

                self._shelf = CheckpointShelf(folder)
            return self._shelf

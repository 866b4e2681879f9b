"""The kernel's session, made when something needs it: loading the extension imports neither torch nor ipyparallel."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..protocol import PROTOCOL_VERSION, ClusterUpdate, Command, Message, Reply, Snapshot
from .comm import Telemetry

if TYPE_CHECKING:
    from ..session import Session


class LazySession:
    """Stands for the session before there is one, to the sidebar too: no cluster, no run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self.telemetry = Telemetry(self)

    @property
    def exists(self) -> bool:
        """Whether something has needed the session yet."""
        return self._session is not None

    def get(self) -> Session:
        """Return the session."""
        with self._lock:
            if self._session is None:
                from ..session import Session

                self._session = Session()
                self._session.on_news = self.telemetry.notify
            return self._session

    def close(self) -> None:
        """Stop what the session runs, and serve the sidebar no more."""
        if self._session is not None:
            self._session.close()
        self.telemetry.close()

    # -- what the sidebar is told -----------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return everything that earlier calls of :meth:`drain` returned."""
        if self._session is None:
            return Snapshot(version=PROTOCOL_VERSION, cluster=ClusterUpdate(phase="stopped"), run=None)
        return self._session.snapshot()

    def drain(self) -> list[Message]:
        """Return what is new since the last call."""
        return [] if self._session is None else self._session.drain()

    def command(self, command: Command) -> Reply:
        """Carry out a command."""
        if self._session is None and command.name != "start_cluster":
            return Reply(id=command.id, ok=False, message="No engines are running.")
        return self.get().command(command)

"""The kernel's end of ``bench.many_hosts``: connections with agents, a cluster of their engines, and a client that hears these."""

from __future__ import annotations

import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jupyter_dtrain.cluster.hosts.agent_link import AgentLink
from jupyter_dtrain.cluster.hosts.host_processes import HostProcesses
from jupyter_dtrain.cluster.hosts.remote_host import RemoteHost
from jupyter_dtrain.cluster.launch_config import engine_name

from .replayed_hosts import ENGINES, message_id


class SocketLink(AgentLink):
    """A connection with an agent of the other process."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self.requests, self.answers = self._socket.makefile("wb"), self._socket.makefile("rb")
        self.has_closed = False

    @property
    def has_ended(self) -> bool:
        return self.has_closed

    def words(self) -> Iterator[str]:
        return iter(())

    def wait(self, limit: timedelta) -> bool:  # noqa: ARG002
        return self.has_closed

    def kill(self) -> None:
        self.has_closed = True
        self._socket.shutdown(socket.SHUT_RDWR)


class ReplayedCluster:
    """What a run asks of its cluster: the answers of `HostProcesses`, as a real one's."""

    controller_alive, unreachable, is_leaving = True, "", False

    def __init__(self, folder: Path) -> None:
        self.processes = HostProcesses([folder], on_exit=lambda _name, _status: None)
        self.engine_ids: list[int] = []

    def add(self, host: RemoteHost) -> None:
        """Let the engines of `host` be the last ranks."""
        self.processes.hosts.append(host)
        for engine in range(len(self.engine_ids), len(self.engine_ids) + ENGINES):
            self.processes.start_engine(host, engine, SimpleNamespace())  # type: ignore[arg-type]
            self.engine_ids.append(engine)

    def has_ended(self, rank: int) -> bool:
        return not self.processes.guard_alive or engine_name(rank) in self.processes.statuses

    def dead_ranks(self) -> list[int]:
        return [rank for rank in range(len(self.engine_ids)) if self.has_ended(rank)]

    def why_lost(self, _rank: int) -> str:
        return ""

    def cpu_time(self, rank: int) -> float | None:
        return self.processes.cpu_time(engine_name(rank))

    def is_stopped(self, rank: int) -> bool:
        return self.processes.is_stopped(engine_name(rank))

    def end_stopped_guard(self) -> None:
        self.processes.end_stopped_guard()


def heard(published: str, key: str) -> Any:
    """Return ipyparallel's client, of which nothing is connected but what hears the engines' events."""
    import zmq
    from ipyparallel import Client
    from ipyparallel.client.client import Metadata
    from jupyter_client.session import Session
    from tornado.ioloop import IOLoop
    from zmq.eventloop.zmqstream import ZMQStream

    client = Client.__new__(Client)
    client.session = Session(key=key.encode(), session="notebook")
    client.metadata, client._futures, client._output_futures = defaultdict(Metadata), {}, {}
    client.send_apply_request = lambda _stream, _function, _arguments, *, ident, message_future_hook: _future(
        client, ident, message_future_hook
    )
    client._mux_stream, client._build_targets = None, lambda targets: (targets, targets)

    def listen() -> None:
        loop = IOLoop(make_current=True)
        link: Any = zmq.Context.instance().socket(zmq.SUB)
        link.rcvhwm = 0
        link.connect(published)
        link.subscribe(b"")
        ZMQStream(link, loop).on_recv(client._dispatch_iopub, copy=False)
        loop.start()

    threading.Thread(target=listen, daemon=True).start()
    return client


def _future(client: Any, rank: int, hook: Callable[[Any], None]) -> Any:
    future = client.create_message_futures(message_id(rank), {}, async_result=True)[0]
    hook(future)
    return future

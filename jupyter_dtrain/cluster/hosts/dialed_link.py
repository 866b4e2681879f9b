"""Connections of agents that connect to the notebook's process, over CURVE.

Each agent has its own port and key. Without the key, which only agents are told, nobody gets past the handshake. Both ends use plain
streams: a thread copies bytes between a socket pair and ZeroMQ's socket.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, BinaryIO

import psutil
import zmq
from zmq.utils.monitor import recv_monitor_message

from ...errors import ClusterError
from .agent_link import AgentLink
from .frames import CHUNK

CONNECT = timedelta(seconds=5)
"""Time for one address of the notebook to answer."""
_QUEUED = 8  # most messages in flight, of at most `CHUNK` bytes each; senders wait for slow receivers
_CONNECTED_TO = -1  # stands for the only peer of an agent
_LOOK = 200  # milliseconds between checks whether to end
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class DialedLink(AgentLink):
    """Listen at a port for one agent.

    Parameters
    ----------
    last_words : callable, optional
        Returns, once the link has ended, the last output of the agent or its starter.
    like : DialedLink, optional
        An ended link whose port and key this one takes over, so that its invitation stays valid.
    """

    def __init__(self, last_words: Callable[[], Sequence[str]] = tuple, *, like: DialedLink | None = None) -> None:
        self._pair: tuple[bytes, bytes] = zmq.curve_keypair() if like is None else like._pair
        self.key, self._last_words = self._pair[0], last_words
        link = _new_socket()
        link.curve_server = True
        link.curve_publickey, link.curve_secretkey = self._pair
        monitor = link.get_monitor_socket(_EVENTS)
        self.port: int = link.bind_to_random_port("tcp://0.0.0.0") if like is None else _bind_again(link, like.port)
        self.requests, self.answers, self._ended, self._kill = _streams(link, monitor)

    @property
    def has_ended(self) -> bool:
        """Whether the agent is gone, or the link was killed."""
        return self._ended.is_set()

    def words(self) -> Iterator[str]:
        """Yield the last output, once the link has ended."""
        self._ended.wait()
        yield from self._last_words()

    def wait(self, limit: timedelta) -> bool:
        """Wait until the agent is gone."""
        return self._ended.wait(limit.total_seconds())

    def kill(self) -> None:
        """Close the link."""
        self._kill.set()
        self._ended.wait()


def invitation(links: Sequence[DialedLink]) -> str:
    """Return the value of `agent_streams.VARIABLE` for the agents of `links`; each agent gets its number separately."""
    ports = [[link.port, link.key.decode()] for link in links]
    return base64.urlsafe_b64encode(json.dumps({"addresses": _own_addresses(), "ports": ports}).encode()).decode()


def _own_addresses() -> list[str]:
    """Return the addresses by which others might reach this host."""
    found = [each.address for addresses in psutil.net_if_addrs().values() for each in addresses if each.family == socket.AF_INET]
    return [address for address in found if not address.startswith("127.")] or ["127.0.0.1"]


def accept(invited: str, number: int) -> tuple[BinaryIO, BinaryIO, str, str]:
    """Connect as agent `number` to the process that has made the invitation `invited`.

    Returns
    -------
    requests, answers : BinaryIO
        The agent's ends.
    notebook, address : str
        Addresses of the notebook's host and of this one, as they see each other.

    Raises
    ------
    ClusterError
        The process cannot be reached from here.
    """
    told = json.loads(base64.urlsafe_b64decode(invited))
    port, key = told["ports"][number if len(told["ports"]) > 1 else 0]
    for notebook in told["addresses"]:
        link = _new_socket()
        link.curve_serverkey = key.encode()
        link.curve_publickey, link.curve_secretkey = zmq.curve_keypair()
        link.setsockopt(zmq.RECONNECT_IVL, -1)  # never reconnect: the stream would have a gap
        monitor = link.get_monitor_socket(_EVENTS)
        link.connect(f"tcp://{notebook}:{port}")
        if _shook_hands(monitor):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
                route.connect((notebook, port))
                address = route.getsockname()[0]
            answers, requests, *_ = _streams(link, monitor, connected=True)
            return requests, answers, notebook, address
        monitor.close()
        link.close(linger=0)
    tried = ", ".join(f"{address}:{port}" for address in told["addresses"])
    raise ClusterError(f"the notebook's process cannot be reached from here ({tried})")


def _new_socket() -> Any:
    link: Any = zmq.Context.instance().socket(zmq.DEALER)
    link.sndhwm = link.rcvhwm = _QUEUED
    link.linger = 0
    return link


def _bind_again(link: Any, port: int) -> int:
    """Bind to a port that another socket of this process had, which ZeroMQ may still be closing."""
    end = time.monotonic() + CONNECT.total_seconds()
    while True:
        try:
            link.bind(f"tcp://0.0.0.0:{port}")
        except zmq.ZMQError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return port


def _shook_hands(monitor: Any) -> bool:
    end = time.monotonic() + CONNECT.total_seconds()
    while (left := end - time.monotonic()) > 0 and monitor.poll(int(left * 1000)):
        event = recv_monitor_message(monitor)["event"]
        if event in (zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED):
            return bool(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
    return False


def _streams(link: Any, monitor: Any, *, connected: bool = False) -> tuple[Any, Any, threading.Event, threading.Event]:
    """Return a file to write to `link`, a file to read from it, an event set at its end, and an event that ends it."""
    here, there = socket.socketpair()
    there.setblocking(False)
    ended, kill = threading.Event(), threading.Event()
    writer, reader = here.makefile("wb"), here.makefile("rb")

    def carry() -> None:
        try:
            _Pump(link, monitor, there, connected=connected).run(kill)
        finally:
            there.close()
            link.disable_monitor()
            monitor.close(linger=0)
            link.close(linger=1000 if not kill.is_set() else 0)
            ended.set()

    threading.Thread(target=carry, name="dtrain-link", daemon=True).start()
    return writer, reader, ended, kill


class _Pump:
    """Copy bytes between a ZeroMQ socket `link` and a plain one until either ends; waits for the slower side."""

    def __init__(self, link: Any, monitor: Any, pair: socket.socket, *, connected: bool) -> None:
        self._link, self._monitor, self._pair = link, monitor, pair
        self._out, self._in = b"", memoryview(b"")  # read on one side and not yet sent on the other
        self._peers = {_CONNECTED_TO} if connected else set[int]()
        self._met = connected
        self._here_ended = False

    def run(self, kill: threading.Event) -> None:
        while not kill.is_set():
            poller = zmq.Poller()
            gone = self._met and not self._peers
            link = (0 if self._in else zmq.POLLIN) | (zmq.POLLOUT if self._out else 0)
            pair = (zmq.POLLOUT if self._in else 0) | (0 if self._out or self._here_ended else zmq.POLLIN)
            poller.register(self._monitor, zmq.POLLIN)
            if link:
                poller.register(self._link, link)
            if pair:
                poller.register(self._pair, pair)
            ready = dict(poller.poll(0 if gone else _LOOK))
            if self._monitor in ready:
                self._note(recv_monitor_message(self._monitor))
            at_link, at_pair = ready.get(self._link, 0), ready.get(self._pair.fileno(), 0)
            try:
                self._carry(at_link, at_pair)
            except OSError:  # the plain socket's other end is closed
                return
            if (gone and not at_link & zmq.POLLIN and not self._in) or (self._here_ended and not self._out):
                return

    def _carry(self, at_link: int, at_pair: int) -> None:
        if at_link & zmq.POLLOUT and self._out:
            self._link.send(self._out, zmq.NOBLOCK)
            self._out = b""
        if at_link & zmq.POLLIN:
            self._in = memoryview(self._link.recv(zmq.NOBLOCK))
        if at_pair & (zmq.POLLIN | zmq.POLLERR):
            self._out = self._pair.recv(CHUNK)
            self._here_ended = not self._out
        if at_pair & zmq.POLLOUT and self._in:
            self._in = self._in[self._pair.send(self._in) :]

    def _note(self, event: Any) -> None:
        kind = event["event"]
        if kind in (zmq.EVENT_ACCEPTED, zmq.EVENT_CONNECTED):
            self._peers.add(int(event["value"]))
        elif kind == zmq.EVENT_DISCONNECTED:
            self._peers.discard(_CONNECTED_TO)
            self._peers.discard(int(event["value"]))
        else:
            self._met = True

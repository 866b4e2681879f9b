"""Connections between ranks on any hosts that emulate shared memory: written parts are sent along with the next message.

Each rank has a copy of the other ranks' memory. A part of the copy is overwritten when its owner shows that part again, which it does only
after this rank's message that it has read it. The messages are the same as between ranks of one host (``peers.py``).

A thread for each other rank receives its messages, so that no sender waits for a reader.
"""

from __future__ import annotations

import mmap
import socket
import struct
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

from .own_socket import HELLO, limit_of
from .peer_files import FileReader, PeerFile, RemoteFile
from .peers import Peers
from .rank_server import RankServer, exactly, fill, shut

_FRAME = struct.Struct("=II")  # number of memory parts, bytes of the message
_PART = struct.Struct("=QQ")  # begin and end
_NUMBER = struct.Struct("=Q")


class HostPeers(Peers):
    """A rank's connections to all others, on any hosts.

    Parameters
    ----------
    rank : int
    links : dict of int to socket
        By rank: connections for messages.
    again : dict of int to callable
        By rank: makes a further connection, for reading the rank's files.
    server : RankServer
        The server of this rank, through which others read its files.
    size : int
        Bytes that each rank can write to.
    timeout : timedelta
        Longest wait for a message.
    """

    def __init__(
        self,
        rank: int,
        links: dict[int, socket.socket],
        again: Mapping[int, Callable[[], socket.socket]],
        server: RankServer,
        *,
        size: int,
        timeout: timedelta,
    ) -> None:
        memory = [mmap.mmap(-1, size) for _ in range(len(links) + 1)]
        self._streams = {other: _Stream(link, memory[other], timeout) for other, link in sorted(links.items())}
        super().__init__(rank, {other: stream.received for other, stream in self._streams.items()}, memory)
        self._readers = {other: FileReader(connect, partial(self._lost, other)) for other, connect in again.items()}
        self._server = server
        self._shown: dict[int, list[tuple[int, int]]] = {other: [] for other in links}

    def show(self, start: int, stop: int, to: Collection[int] | None = None) -> None:
        """Send a part of this rank's memory along with the next message, to all or some ranks."""
        for rank, parts in self._shown.items():
            if stop > start and (to is None or rank in to):
                parts.append((start, stop))

    def send(self, message: bytes) -> None:
        """Send a short message to every other rank, with the memory parts shown to it."""
        own = memoryview(self.memory[self.rank])
        for rank, stream in self._streams.items():
            parts, self._shown[rank] = self._shown[rank], []
            try:
                stream.send(message, [(start, own[start:stop]) for start, stop in parts])
            except OSError as error:
                raise self._lost(rank) from error

    def open_files(self, file: int) -> dict[int, PeerFile]:
        """Let every other rank read an open file, and return their files by rank."""
        number = self._server.offer(file, len(self._streams))
        self.send(HELLO.pack(self.rank) + _NUMBER.pack(number))
        found: dict[int, PeerFile] = {}
        for rank, hello in zip(self._streams, self.receive(HELLO.size + _NUMBER.size), strict=True):
            if HELLO.unpack_from(hello) != (rank,):
                raise self._lost(rank)
            found[rank] = RemoteFile(self._readers[rank], *_NUMBER.unpack_from(hello, HELLO.size))
        return found

    def cut(self) -> None:
        """Shut down all connections, so that waiting threads get an error. Any thread may call this."""
        for stream in self._streams.values():
            stream.shut()
        for reader in self._readers.values():
            reader.cut()

    def close(self) -> None:
        """Shut down the message connections; files that other ranks have opened stay readable."""
        for stream in self._streams.values():
            stream.shut()
        super().close()

    def forget(self) -> None:
        """Close the sockets without shutting down the connections."""
        super().forget()
        for stream in self._streams.values():
            stream.forget()
        for reader in self._readers.values():
            reader.forget()


class _Stream:
    """A connection to another rank.

    Attributes
    ----------
    received : socket
        Delivers the rank's messages after the memory parts sent with them have been copied.
    """

    def __init__(self, link: socket.socket, memory: mmap.mmap, timeout: timedelta) -> None:
        self._link, self._memory = link, memory
        self.received, self._pass_on = socket.socketpair()
        self.received.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit_of(timeout))
        threading.Thread(target=self._take_in, name="dtrain-peer", daemon=True).start()

    def send(self, message: bytes, parts: Sequence[tuple[int, memoryview]]) -> None:
        """Send parts of this rank's memory with their offsets, then a message."""
        head = _FRAME.pack(len(parts), len(message)) + b"".join(_PART.pack(start, start + len(part)) for start, part in parts)
        if not parts:
            self._link.sendall(head + message)
            return
        self._link.sendall(head)
        for _, part in parts:
            self._link.sendall(part)
        self._link.sendall(message)

    def _take_in(self) -> None:
        own = memoryview(self._memory)
        with suppress(OSError, EOFError, ValueError):  # the other rank or this rank has left
            while True:
                num_parts, size = _FRAME.unpack(exactly(self._link, _FRAME.size))
                parts = [_PART.unpack(exactly(self._link, _PART.size)) for _ in range(num_parts)]
                for start, stop in parts:
                    fill(self._link, own[start:stop])
                self._pass_on.sendall(exactly(self._link, size))
        self.shut()
        self.forget()

    def shut(self) -> None:
        """Shut down the connection, so that threads waiting in it get an error."""
        shut(self._link)
        shut(self._pass_on)

    def forget(self) -> None:
        """Close the sockets without shutting down the connection."""
        self._link.close()
        self._pass_on.close()

"""Connections between ranks that may be on several hosts: what a rank shows of its memory is sent along with its next message.

Each rank has a copy of what the others show. A part of it is written over when its rank shows that part again, which it does when this one
has said that it has read it: what shared memory is to ranks of one host (``peers.py``), and with the same messages.

A thread for each other rank takes in what it sends, so nobody waits with sending until another reads.
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

_FRAME = struct.Struct("=II")  # how many parts of the memory, and bytes of the message
_PART = struct.Struct("=QQ")  # begin and end
_NUMBER = struct.Struct("=Q")


class HostPeers(Peers):
    """A rank's connections to all others, on whichever hosts.

    Parameters
    ----------
    rank : int
    links : dict of int to socket
        By rank, over which they send.
    again : dict of int to callable
        By rank, what makes another connection, by which its files are read.
    server : RankServer
        Of this rank, by which they read its own.
    size : int
        Bytes that each rank can write to.
    timeout : timedelta
        Time that a message is waited for.
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
        """Send a few bytes to every other rank, and what it is shown."""
        own = memoryview(self.memory[self.rank])
        for rank, stream in self._streams.items():
            parts, self._shown[rank] = self._shown[rank], []
            try:
                stream.send(message, [(start, own[start:stop]) for start, stop in parts])
            except OSError as error:
                raise self._lost(rank) from error

    def open_files(self, file: int) -> dict[int, PeerFile]:
        """Let every other rank read an open file, and return theirs by rank."""
        number = self._server.offer(file, len(self._streams))
        self.send(HELLO.pack(self.rank) + _NUMBER.pack(number))
        found: dict[int, PeerFile] = {}
        for rank, hello in zip(self._streams, self.receive(HELLO.size + _NUMBER.size), strict=True):
            if HELLO.unpack_from(hello) != (rank,):
                raise self._lost(rank)
            found[rank] = RemoteFile(self._readers[rank], *_NUMBER.unpack_from(hello, HELLO.size))
        return found

    def cut(self) -> None:
        """End all connections, so that who waits in one gets an error. Any thread may call this."""
        for stream in self._streams.values():
            stream.shut()
        for reader in self._readers.values():
            reader.cut()

    def close(self) -> None:
        """End the connections; what other ranks have opened can be read still."""
        for stream in self._streams.values():
            stream.shut()
        super().close()

    def forget(self) -> None:
        """Let go of the connections without ending them."""
        super().forget()
        for stream in self._streams.values():
            stream.forget()
        for reader in self._readers.values():
            reader.forget()


class _Stream:
    """What goes to another rank and comes from it.

    Attributes
    ----------
    received : socket
        Has its messages, once what it shows with them is in the copy of its memory.
    """

    def __init__(self, link: socket.socket, memory: mmap.mmap, timeout: timedelta) -> None:
        self._link, self._memory = link, memory
        self.received, self._pass_on = socket.socketpair()
        self.received.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit_of(timeout))
        threading.Thread(target=self._take_in, name="dtrain-peer", daemon=True).start()

    def send(self, message: bytes, parts: Sequence[tuple[int, memoryview]]) -> None:
        """Send a message, and before it parts of this rank's memory with where they begin."""
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
        with suppress(OSError, EOFError, ValueError):  # the other has left, or this rank has
            while True:
                num_parts, size = _FRAME.unpack(exactly(self._link, _FRAME.size))
                parts = [_PART.unpack(exactly(self._link, _PART.size)) for _ in range(num_parts)]
                for start, stop in parts:
                    fill(self._link, own[start:stop])
                self._pass_on.sendall(exactly(self._link, size))
        self.shut()
        self.forget()

    def shut(self) -> None:
        """End it, so that who waits for a message, or with one, gets an error."""
        shut(self._link)
        shut(self._pass_on)

    def forget(self) -> None:
        """Let go of it without ending it."""
        self._link.close()
        self._pass_on.close()

"""Server through which ranks of other hosts reach this one while it computes: a TCP port at its host's address, served by threads.

A peer that does not know the generation's key is rejected. Later data is neither encrypted nor signed, as with gloo (``links.py``): the
network is trusted not to change it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from weakref import WeakSet

from ...system.handshake import is_known

GREETING = timedelta(seconds=10)
"""Longest time for both ends to authenticate."""
FILES = "files"
"""The purpose of a connection through which another rank reads open files of this one."""
REQUEST = struct.Struct("=QQQ")  # number of a file, offset, bytes; zero bytes: the file is released
_HELLO = struct.Struct("=IH")  # a rank, and the size of its purpose
_SERVER, _CALLER = b"server", b"caller"  # roles


class RankServer:
    """The server of one rank.

    Parameters
    ----------
    host : str
        Address to listen on.
    key : bytes
        Secret of the generation's ranks.

    Attributes
    ----------
    address : (str, int)
    answers : dict of str to callable
        By purpose: serves a connection, in its thread. Connections of other purposes go to :meth:`arrival`.
    """

    def __init__(self, host: str, key: bytes) -> None:
        self._key = key
        self._listener = socket.create_server((host, 0), family=socket.AF_INET, backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._changed = threading.Condition()
        self._arrived: dict[tuple[str, int], socket.socket] = {}
        self._served: WeakSet[socket.socket] = WeakSet()
        self._files: dict[int, list[int]] = {}  # by number: the file, and its number of readers
        self._num_files = 0
        self.answers: dict[str, Callable[[socket.socket], None]] = {FILES: self._serve}
        _of_this_process.add(self)
        threading.Thread(target=self._accept, args=(self._listener,), name="dtrain-rank-server", daemon=True).start()

    # -- incoming connections ----------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the listener is closed
                return
            threading.Thread(target=self._greet, args=(connection,), name="dtrain-rank-caller", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(GREETING.total_seconds())
            if not is_known(connection, self._key, _SERVER, _CALLER):
                connection.close()
                return
            rank, size = _HELLO.unpack(exactly(connection, _HELLO.size))
            purpose = exactly(connection, size).decode()
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, EOFError):
            connection.close()
            return
        self._served.add(connection)
        if purpose in self.answers:
            with connection, contextlib.suppress(OSError, EOFError):
                self.answers[purpose](connection)
            return
        with self._changed:
            self._arrived[purpose, rank] = connection
            self._changed.notify_all()

    def arrival(self, purpose: str, rank: int, limit: timedelta) -> socket.socket:
        """Return the connection that `rank` makes for a purpose.

        Raises
        ------
        TimeoutError
            It was not made within `limit`.
        """
        end = time.monotonic() + limit.total_seconds()
        with self._changed:
            while (purpose, rank) not in self._arrived:
                if not self._changed.wait(end - time.monotonic()):
                    raise TimeoutError(f"rank {rank} has not come within {limit.total_seconds():g} s")
            return self._arrived.pop((purpose, rank))

    # -- files -------------------------------------------------------------------------------------------------------

    def offer(self, file: int, num_readers: int) -> int:
        """Let `num_readers` other ranks read an open file, which the caller may close; return its number for them."""
        self._num_files += 1
        self._files[self._num_files] = [os.dup(file), num_readers]
        return self._num_files

    def _serve(self, connection: socket.socket) -> None:
        while True:
            number, offset, length = REQUEST.unpack(exactly(connection, REQUEST.size))
            if not length:
                self._release(number)
                continue
            file = self._files[number][0] if number in self._files else None
            if file is None:
                return
            while length:
                sent = os.sendfile(connection.fileno(), file, offset, length)
                if not sent:  # end of file
                    return
                offset, length = offset + sent, length - sent

    def _release(self, number: int) -> None:
        with self._changed:
            entry = self._files.get(number)
            if entry is None:
                return
            entry[1] -= 1
            if not entry[1]:
                os.close(self._files.pop(number)[0])
                self._changed.notify_all()

    # -- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening, and shut down all connections."""
        _of_this_process.discard(self)
        for connection in (self._listener, *self._served, *self._arrived.values()):
            shut(connection)
        self.forget()

    def forget(self) -> None:
        """Close all sockets and files without shutting down connections, in a forked process that inherited them."""
        for connection in (self._listener, *self._served, *self._arrived.values()):
            connection.close()
        for file, _ in self._files.values():
            os.close(file)
        self._files, self._arrived = {}, {}


def call(address: Sequence[object], *, key: bytes, rank: int, purpose: str, limit: timedelta) -> socket.socket:
    """Return a connection to the server at `address`.

    Raises
    ------
    OSError
        The server cannot be reached, does not answer, or does not know the key.
    """
    host, port = address
    connection = socket.create_connection((str(host), int(str(port))), timeout=min(limit, GREETING).total_seconds())
    try:
        if not is_known(connection, key, _CALLER, _SERVER):
            raise ConnectionError(f"What answers at {host}:{port} is no rank of this run: nothing was sent to it, and nothing read of it.")
        connection.sendall(_HELLO.pack(rank, len(purpose)) + purpose.encode())
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except EOFError as error:
        connection.close()
        raise ConnectionError(f"What answers at {host}:{port} has left.") from error
    except BaseException:
        connection.close()
        raise
    return connection


def exactly(connection: socket.socket, size: int) -> bytes:
    """Receive `size` bytes.

    Raises
    ------
    EOFError
        The other end has closed the connection.
    """
    found = bytearray(size)
    fill(connection, memoryview(found))
    return bytes(found)


def fill(connection: socket.socket, view: memoryview) -> None:
    """Fill `view` with received bytes; raises as :func:`exactly`."""
    done = 0
    while done < len(view):
        count = connection.recv_into(view[done:], 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError
        done += count


def shut(connection: socket.socket) -> None:
    """Shut down a connection, also for forked processes that inherited it, so that threads waiting in it get an error."""
    with contextlib.suppress(OSError):  # the other side has closed it already
        connection.shutdown(socket.SHUT_RDWR)


_of_this_process: WeakSet[RankServer] = WeakSet()


def _after_fork() -> None:
    for server in list(_of_this_process):
        server.forget()
    _of_this_process.clear()


os.register_at_fork(after_in_child=_after_fork)

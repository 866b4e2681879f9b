"""The line between a kernel and the process that runs its cell detached: pickled messages over a Unix socket.

Reading a pickle can run any code, so neither end reads a message before it knows whose the other is. Which socket a run listens at is
found in the run's folder, which somebody else may have written. So the socket has to lie in a folder that is this user's alone, the system
has to say that this user's process is at its other end, and each end has to show that it has read the key that lies there, in its own
role: what one end has shown is of no use at the other.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..errors import ClusterError
from ..protocol import Message
from ..system.handshake import SIZE, is_known
from ..system.peer_credentials import is_own

SOCKET = "line"
KEY = "line-key"
LIMIT = timedelta(seconds=30)
"""Time in which both ends have shown who they are."""
_KERNEL, _HOST = b"kernel", b"host"  # roles


@dataclass(frozen=True)
class Hello:
    """A kernel, the process `pid`, is there. `begins`: it is the one whose cell it is."""

    pid: int
    begins: bool = False


@dataclass(frozen=True)
class Refused:
    """Another kernel, the process `pid`, follows the run."""

    pid: int


@dataclass(frozen=True)
class Ready:
    """The engines are there, and the cell's values are to lie in `blobs`."""

    blobs: Path


@dataclass(frozen=True)
class Interrupt:
    """■ was pressed."""


@dataclass(frozen=True)
class Updates:
    """What views of the run are told, first a snapshot."""

    messages: Sequence[Message]


@dataclass(frozen=True)
class Shown:
    """What the cell has shown: names of methods of an output, and what they are called with."""

    calls: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Ended:
    """The run has ended, and its results lie in `folder`."""

    folder: Path


@dataclass(frozen=True)
class Taken:
    """The results are in the notebook."""


class PeerConnection:
    """One end of it. Any thread may send, one receives."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    @classmethod
    def to(cls, address: Path) -> PeerConnection:
        """Connect to the process that listens at `address`.

        Raises
        ------
        OSError, EOFError
            It is not there (any more), or does not answer.
        ClusterError
            It is no process of this user's.
        """
        _check_own(address.parent, stat.S_ISDIR)
        _check_own(address, stat.S_ISSOCK)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(LIMIT.total_seconds())
            connection.connect(str(address))
            if not is_own(connection):
                raise _stranger(address)
            key = (address.parent / KEY).read_bytes()
            if len(key) != SIZE or not is_known(connection, key, _KERNEL, _HOST):
                raise _stranger(address)
        except BaseException:
            connection.close()
            raise
        return cls(_open(connection))

    @classmethod
    def answering(cls, connection: socket.socket, key: bytes) -> PeerConnection | None:
        """Return the end of what a listener has accepted, ``None`` where the other side is another user's, or has not the same `key`.

        Raises
        ------
        OSError, EOFError
            It is gone, or silent.
        """
        try:
            connection.settimeout(LIMIT.total_seconds())
            if is_own(connection) and is_known(connection, key, _HOST, _KERNEL):
                return cls(_open(connection))
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

    def send(self, message: object) -> None:
        """Send a message; nothing happens if the other side is gone."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)  # the connection's own way would have torch share tensors' memory
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(data)

    def receive(self) -> Any:
        """Return the next message; ``None`` at the end of the line."""
        try:
            data = self._connection.recv_bytes()
        except (OSError, EOFError):
            return None
        return pickle.loads(data)

    def close(self) -> None:
        """Hang up: both ends receive nothing more, also a thread that waits in :meth:`receive`, which closing alone would not reach."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)


def listen(folder: Path) -> tuple[socket.socket, bytes]:
    """Return what listens for :meth:`PeerConnection.answering`, with its socket in `folder`, and their key, which is put beside it."""
    key = secrets.token_bytes(SIZE)
    with open(folder / KEY, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(key)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(folder / SOCKET))
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener, key


def _check_own(path: Path, is_kind: Callable[[int], bool]) -> None:
    """Raise a `ClusterError` where what is at `path` is not of the kind, or not this user's alone."""
    about = path.lstat()
    open_to_others = is_kind is stat.S_ISDIR and about.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if not is_kind(about.st_mode) or about.st_uid != os.getuid() or open_to_others:
        raise _stranger(path)


def _stranger(path: Path) -> ClusterError:
    return ClusterError(
        f"The host process that this run's folder names ({path}) is not yours: nothing was read from it. "
        "Was the folder written by somebody else?"
    )


def _open(connection: socket.socket) -> Connection[Any, Any]:
    connection.settimeout(None)
    return Connection(connection.detach())


# The start of a host, by the kernel.

MODULE = f"{__package__.partition('.')[0]}.host_app"

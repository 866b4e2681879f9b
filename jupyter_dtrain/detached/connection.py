"""Connect a kernel and the process that runs its cell detached: pickled messages over a Unix socket.

Unpickling can execute any code, so neither end reads a message before it has authenticated the other. The socket's address is found in the
run's folder, which someone else may have written. So the socket must be in a folder that is private to this user, the operating system must
confirm that this user's process is at its other end, and each end must prove that it has read the key in that folder. The proof includes
the end's role, so it cannot be replayed at the other end.
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
"""Time limit of the authentication."""
_KERNEL, _HOST = b"kernel", b"host"  # roles


@dataclass(frozen=True)
class Hello:
    """First message of a kernel, the process `pid`. `begins`: it is the kernel that started the run."""

    pid: int
    begins: bool = False


@dataclass(frozen=True)
class Refused:
    """Refusal: another kernel, the process `pid`, follows the run."""

    pid: int


@dataclass(frozen=True)
class Ready:
    """The engines are running, and the cell's values are to be stored in `blobs`."""

    blobs: Path


@dataclass(frozen=True)
class Interrupt:
    """The user has interrupted the kernel (■)."""


@dataclass(frozen=True)
class Updates:
    """Messages for views of the run, a snapshot first."""

    messages: Sequence[Message]


@dataclass(frozen=True)
class Shown:
    """Output of the cell: names of methods of an `Output`, and their arguments."""

    calls: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Ended:
    """The run has ended, and its results are in `folder`."""

    folder: Path


@dataclass(frozen=True)
class Taken:
    """The notebook has the results."""


class PeerConnection:
    """One end of the connection. Any thread may send; one thread receives."""

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
            It is not a process of this user.
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
        """Return the end for an accepted `connection`, ``None`` if the other end is another user's or does not know the `key`.

        Raises
        ------
        OSError, EOFError
            The other end has closed the connection, or does not answer.
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
        """Send a message; do nothing if the other end is gone."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)  # `Connection.send` would make torch share tensors' memory
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(data)

    def receive(self) -> Any:
        """Return the next message; ``None`` if the connection is closed."""
        try:
            data = self._connection.recv_bytes()
        except (OSError, EOFError):
            return None
        return pickle.loads(data)

    def close(self) -> None:
        """Shut the connection down for both ends. This wakes a thread in :meth:`receive`, which closing alone would not do."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)


def listen(folder: Path) -> tuple[socket.socket, bytes]:
    """Return a listening socket in `folder` for :meth:`PeerConnection.answering`, and its key, which is written to the folder too."""
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
    """Raise a `ClusterError` if `path` is of another kind, or not private to this user."""
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


# Module of the host's process, which the kernel starts.

MODULE = f"{__package__.partition('.')[0]}.host_app"

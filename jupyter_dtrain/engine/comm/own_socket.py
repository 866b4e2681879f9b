"""Connect ranks of one host: sockets without a name in a file system, over which memory is passed."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
import uuid
from datetime import timedelta

from ...system.peer_credentials import is_own

HELLO = struct.Struct("<I")  # a rank
_SECONDS = struct.Struct("ll")


def limit_of(timeout: timedelta) -> bytes:
    """Return a socket option that limits blocking calls to `timeout`, which avoids a ``poll`` for each message as with ``settimeout``."""
    return _SECONDS.pack(int(timeout.total_seconds()), 0)


class OwnSocket:
    """A listening socket and memory of one rank."""

    def __init__(self, size: int) -> None:
        self.name = f"jupyter-dtrain-{uuid.uuid4().hex}"
        self._size = size
        self._memory = os.memfd_create("jupyter-dtrain", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, size)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(128)

    @classmethod
    def make(cls, size: int) -> OwnSocket | None:
        """Return an instance with memory of `size` bytes; ``None`` if the system does not support it."""
        if sys.platform != "linux":
            return None
        try:
            return cls(size)
        except OSError:  # a sandbox may forbid memory files or abstract sockets
            return None

    def connect(self, rank: int, names: list[str], timeout: timedelta) -> tuple[dict[int, socket.socket], list[mmap.mmap]] | None:
        """Connect to the other ranks, and map their memory.

        Returns
        -------
        tuple, optional
            Sockets by rank, and the memory of all ranks; ``None`` if connecting failed.

        Raises
        ------
        Stranger
            A rank's socket belongs to another user.
        """
        sockets: dict[int, socket.socket] = {}
        try:
            for other in range(rank):
                sockets[other] = connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.settimeout(timeout.total_seconds())
                connection.connect(f"\0{names[other]}")
                if not is_own(connection):
                    connection.close()
                    raise Stranger(f"The socket of rank {other} is another user's: nothing was sent to it, and nothing read of it.")
                socket.send_fds(connection, [HELLO.pack(rank)], [self._memory])
            self._listener.settimeout(timeout.total_seconds())
            memory = {rank: mmap.mmap(self._memory, self._size)}
            while len(sockets) < len(names) - 1:
                connection, _ = self._listener.accept()
                if not is_own(connection):
                    connection.close()
                    continue
                connection.settimeout(timeout.total_seconds())
                other = self._take_memory(connection, memory)
                if other in sockets or not rank < other < len(names):
                    connection.close()
                    raise OSError(f"a rank {other} is not expected here")
                sockets[other] = connection
                socket.send_fds(connection, [HELLO.pack(rank)], [self._memory])
            for other in range(rank):
                if self._take_memory(sockets[other], memory) != other:
                    raise OSError(f"what answers for rank {other} is another")
        except BaseException as error:
            for connection in sockets.values():
                connection.close()
            if isinstance(error, OSError) and not isinstance(error, Stranger):
                return None
            raise
        limit = limit_of(timeout)
        for connection in sockets.values():
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        return dict(sorted(sockets.items())), [memory[other] for other in range(len(names))]

    def _take_memory(self, connection: socket.socket, memory: dict[int, mmap.mmap]) -> int:
        """Map the memory that the other side sends, and return its rank."""
        hello, files, _, _ = socket.recv_fds(connection, HELLO.size, 1)
        if not files:
            raise OSError("no memory came along")
        (rank,) = HELLO.unpack(hello)
        memory[rank] = mmap.mmap(files[0], self._size)
        os.close(files[0])
        return int(rank)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        os.close(self._memory)  # the mapping stays valid


class Stranger(ConnectionError):
    """A process that is not a rank has taken a rank's place."""

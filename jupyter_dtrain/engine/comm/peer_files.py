"""In-memory files of another rank that this rank reads: directly on the same host, otherwise through a request to that rank."""

from __future__ import annotations

import os
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from .rank_server import REQUEST, fill, shut


class PeerFile(ABC):
    """A file of another rank."""

    @abstractmethod
    def read(self, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of the file. Any thread may call this.

        Raises
        ------
        RuntimeError
            The rank has left, or the file is shorter.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the file. Garbage collection may call this at any moment."""


class LocalFile(PeerFile):
    """An open file received from another rank of the host."""

    def __init__(self, file: int) -> None:
        os.set_inheritable(file, False)
        self._file = file

    def read(self, view: memoryview, offset: int) -> None:
        """Read the file, without its owner taking part."""
        done = 0
        while done < len(view):
            count = os.preadv(self._file, [view[done:]], offset + done)
            if not count:
                raise RuntimeError("A rank has less memory than it was said to have.")
            done += count

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class FileReader:
    """Reads files of a rank on another host. Each thread has its own connection, so that none waits for another.

    Parameters
    ----------
    connect : callable
        Returns a new connection.
    lost : callable
        Returns the error to raise if the connection fails.
    """

    def __init__(self, connect: Callable[[], socket.socket], lost: Callable[[], RuntimeError]) -> None:
        self._connect, self._lost = connect, lost
        self._own = threading.local()
        self._links: set[socket.socket] = set()
        self._is_over = False
        self._unneeded: deque[int] = deque()
        self._telling = threading.Lock()
        self._teller: socket.socket | None = None

    def read(self, number: int, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of the file with this number.

        Raises
        ------
        RuntimeError
            The connection has failed.
        """
        if not len(view):
            return
        link: socket.socket | None = getattr(self._own, "link", None)
        try:
            if self._is_over:
                raise ConnectionError
            if link is None or link.fileno() < 0:
                link = self._own.link = self._connect()
                self._links.add(link)
            link.sendall(REQUEST.pack(number, offset, len(view)))
            fill(link, view)
        except BaseException as error:  # an interrupt too: a late answer must not be taken for another's
            self._own.link = None
            if link is not None:
                self._links.discard(link)
                link.close()
            if isinstance(error, OSError | EOFError):
                raise self._lost() from error
            raise

    def need_no_more(self, number: int) -> None:
        """Tell the other rank that a file is released: now, or together with the next one if another thread is sending."""
        self._unneeded.append(number)
        while self._unneeded and not self._is_over and self._telling.acquire(blocking=False):
            try:
                with suppress(OSError, IndexError):  # the rank has left, and the file with it
                    if self._teller is None:
                        self._teller = self._connect()
                        self._links.add(self._teller)
                    self._teller.sendall(REQUEST.pack(self._unneeded.popleft(), 0, 0))
                    continue
                self._unneeded.clear()
            finally:
                self._telling.release()

    def cut(self) -> None:
        """Shut down all connections and make no new ones, so that waiting threads get an error."""
        self._is_over = True
        for link in list(self._links):
            shut(link)

    def forget(self) -> None:
        """Close the sockets without shutting down the connections."""
        self._is_over = True
        for link in self._links:
            link.close()


class RemoteFile(PeerFile):
    """A file of a rank on another host, by its number there."""

    def __init__(self, reader: FileReader, number: int) -> None:
        self._reader, self._number = reader, number

    def read(self, view: memoryview, offset: int) -> None:
        """Request the bytes, which a thread of that rank sends."""
        self._reader.read(self._number, view, offset)

    def close(self) -> None:
        """Tell the rank that the file is released."""
        self._reader.need_no_more(self._number)

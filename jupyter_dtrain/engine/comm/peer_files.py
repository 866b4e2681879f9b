"""Files in memory that another rank has opened, and this one reads: on the same host the file itself, elsewhere by a word to that rank."""

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
        """Fill `view` with what stands at `offset`. Any thread may call this.

        Raises
        ------
        RuntimeError
            It is not there any more.
        """

    @abstractmethod
    def close(self) -> None:
        """Need it no more. This may be called at any moment, by the collector of garbage."""


class LocalFile(PeerFile):
    """An open file that another rank of the host has sent."""

    def __init__(self, file: int) -> None:
        os.set_inheritable(file, False)
        self._file = file

    def read(self, view: memoryview, offset: int) -> None:
        """Read it, without a word of the rank that has it."""
        done = 0
        while done < len(view):
            count = os.preadv(self._file, [view[done:]], offset + done)
            if not count:
                raise RuntimeError("A rank has less memory than it was said to have.")
            done += count

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


class FileReader:
    """Reads files of a rank of another host. Each thread has a connection of its own, so none waits for another.

    Parameters
    ----------
    connect : callable
        Returns a new connection.
    lost : callable
        Returns what to raise where there is none any more.
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
        """Fill `view` with what stands at `offset` of a file."""
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
        except BaseException as error:  # an interrupt as well: what comes now is the answer to nothing
            self._own.link = None
            if link is not None:
                self._links.discard(link)
                link.close()
            if isinstance(error, OSError | EOFError):
                raise self._lost() from error
            raise

    def need_no_more(self, number: int) -> None:
        """Let the other rank know that a file is needed no more: now, or with the next one, where another thread is telling."""
        self._unneeded.append(number)
        while self._unneeded and not self._is_over and self._telling.acquire(blocking=False):
            try:
                with suppress(OSError, IndexError):  # it is gone, and the file with it
                    if self._teller is None:
                        self._teller = self._connect()
                        self._links.add(self._teller)
                    self._teller.sendall(REQUEST.pack(self._unneeded.popleft(), 0, 0))
                    continue
                self._unneeded.clear()
            finally:
                self._telling.release()

    def cut(self) -> None:
        """End all connections, and make no new ones: who waits in one gets an error."""
        self._is_over = True
        for link in list(self._links):
            shut(link)

    def forget(self) -> None:
        """Let go of the connections without ending them."""
        self._is_over = True
        for link in self._links:
            link.close()


class RemoteFile(PeerFile):
    """A file of a rank of another host, by the number that it has there."""

    def __init__(self, reader: FileReader, number: int) -> None:
        self._reader, self._number = reader, number

    def read(self, view: memoryview, offset: int) -> None:
        """Ask for it: a thread of that rank answers."""
        self._reader.read(self._number, view, offset)

    def close(self) -> None:
        """Say so."""
        self._reader.need_no_more(self._number)

"""Connections between the ranks of one host: a socket and shared memory for each pair.

Neither has a name in a file system, so nothing is left of them after a kill. Sockets are in Linux's abstract namespace, under names that
only the ranks know, and memory is passed over them. When a rank leaves or is killed its sockets close, which its peers see at once.

An abstract name has no owner and no mode: any user may bind or find it. Therefore both sides ask the system for the other end's user before
they send or read a byte.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
from collections.abc import Callable, Collection
from datetime import timedelta
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch.distributed as dist

from ...system.resources import usable_cores
from .own_socket import HELLO, OwnSocket
from .peer_files import LocalFile, PeerFile
from .rank_store import wait_for

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # not in torch's own list of exports

AWAKE = timedelta(milliseconds=1)
"""How long a rank that waits for a message looks for it before it sleeps, if each rank has a core.

Ranks that compute the same meet within less. To wake a process that sleeps takes its *sender* tenths of a millisecond on virtual cores.
"""
_NONE = "-"  # in place of a name: this rank cannot connect


class Peers:
    """A rank's connections to all others.

    Parameters
    ----------
    rank : int
    sockets : dict of int to socket
        By rank.
    memory : list of mmap
        By rank: the memory that it writes to, including this rank's.
    awake : timedelta
        How long :meth:`receive_from` looks for a message before it sleeps.

    Attributes
    ----------
    rank : int
    memory : list of mmap
    on_lost : callable
        Called when another rank has left, before the error is raised.
    """

    on_lost: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, rank: int, sockets: dict[int, socket.socket], memory: list[mmap.mmap], *, awake: timedelta = timedelta(0)) -> None:
        self.rank, self._awake = rank, awake.total_seconds()
        self.memory = memory
        self._sockets = sockets
        _of_this_process.add(self)

    @classmethod
    def rendezvous(cls, store: Store, *, rank: int, world_size: int, size: int, timeout: timedelta) -> Peers | None:
        """Connect all ranks, each with `size` bytes to write to; ``None`` on all of them if one cannot: not on Linux, for example.

        Raises
        ------
        ConnectionError
            The socket in place of a rank's belongs to another user.
        """
        own = OwnSocket.make(size)
        try:
            store.set(f"near/{rank}", _NONE if own is None else own.name)
            names = _all_of(store, "near/{}", world_size, timeout)
            ends = None if own is None or _NONE in names else own.connect(rank, names, timeout)
            peers = None if ends is None else cls(rank, *ends, awake=AWAKE if _have_cores() else timedelta(0))
            # A rank that could not connect tells the others, which may have connected.
            store.set(f"near/{rank}/connected", _NONE if peers is None else "+")
            if _NONE not in _all_of(store, "near/{}/connected", world_size, timeout):
                return peers
            if peers is not None:
                peers.close()
            return None
        finally:
            if own is not None:
                own.close()

    def show(self, start: int, stop: int, to: Collection[int] | None = None) -> None:
        """Show a part of this rank's memory to all or some ranks with the next message; here memory is shared, so nothing is done."""

    def send(self, message: bytes) -> None:
        """Send a short message to every other rank.

        Raises
        ------
        RuntimeError
            A rank has left.
        """
        for rank, connection in self._sockets.items():
            try:
                connection.sendall(message)
            except OSError as error:
                raise self._lost(rank) from error

    def receive(self, size: int) -> list[bytes]:
        """Return a message of `size` bytes from every other rank.

        Raises
        ------
        RuntimeError
            A rank has left, or has sent nothing within the time limit.
        """
        return [self.receive_from(rank, size) for rank in self._sockets]

    def receive_from(self, rank: int, size: int) -> bytes:
        """Return a message of `size` bytes from another rank; raises as :meth:`receive`."""
        try:
            found = self._at_once(self._sockets[rank], size) if self._awake else b""
            if len(found) < size:
                found += self._sockets[rank].recv(size - len(found), socket.MSG_WAITALL)
        except BlockingIOError:
            raise RuntimeError(f"Connection with rank {rank}: it has not come to where this one waits for it.") from None
        except OSError as error:
            raise self._lost(rank) from error
        if len(found) < size:
            raise self._lost(rank)
        return found

    def _at_once(self, connection: socket.socket, size: int) -> bytes:
        """Return what has come, or comes soon, of a message of `size` bytes."""
        until = perf_counter() + self._awake
        while perf_counter() < until:
            try:
                return connection.recv(size, socket.MSG_DONTWAIT)
            except BlockingIOError:
                os.sched_yield()
        return b""

    def _lost(self, rank: int) -> RuntimeError:
        self.on_lost()
        return RuntimeError(f"Connection with rank {rank}: it has left.")

    def exchange_files(self, file: int) -> dict[int, int]:
        """Send an open file to every other rank, and return theirs by rank. The caller closes them.

        Raises
        ------
        RuntimeError
            A rank has left, or has sent something else.
        """
        for rank, connection in self._sockets.items():
            try:
                socket.send_fds(connection, [HELLO.pack(self.rank)], [file])
            except OSError as error:
                raise self._lost(rank) from error
        found: dict[int, int] = {}
        for rank, connection in self._sockets.items():
            try:
                _, files, _, _ = socket.recv_fds(connection, HELLO.size, 1)
            except OSError as error:
                raise self._lost(rank) from error
            if not files:
                raise self._lost(rank)
            found[rank] = files[0]
        return found

    def open_files(self, file: int) -> dict[int, PeerFile]:
        """Let every other rank read an open file, and return theirs by rank; raises as :meth:`exchange_files`."""
        return {rank: LocalFile(found) for rank, found in self.exchange_files(file).items()}

    def with_news(self, ranks: Collection[int] | None = None) -> list[int]:
        """Return the other ranks, of `ranks` if given, that have sent an unread message or have left."""
        others = [rank for rank in self._sockets if ranks is None or rank in ranks]
        if any(self._sockets[rank].fileno() < 0 for rank in others):  # this rank has left
            return others
        poll = select.poll()
        by_number = {self._sockets[rank].fileno(): rank for rank in others}
        for number in by_number:
            poll.register(number, select.POLLIN)
        return [by_number[number] for number, _ in poll.poll(0)]

    def peek(self, rank: int, size: int) -> bytes:
        """Return at most `size` unread bytes from another rank without consuming them; empty if it has left."""
        try:
            return self._sockets[rank].recv(size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return b""

    def cut(self) -> None:
        """Shut down connections to other hosts, so that whoever waits for a silent rank gets an error. Any thread may call this."""

    def close(self) -> None:
        """Close the connections, so that ranks waiting for this one get an error."""
        _of_this_process.discard(self)
        for connection in self._sockets.values():
            try:
                connection.shutdown(socket.SHUT_RDWR)  # also ends it for forked processes that inherited the socket
            except OSError:
                pass  # the other side has closed it already
            connection.close()

    def forget(self) -> None:
        """Close the sockets without shutting down the connections, in a forked process that inherited them."""
        for connection in self._sockets.values():
            connection.close()


def _have_cores() -> bool:
    """Return whether each rank of the run, of which those that connect may be a few, has a core of this host."""
    return dist.is_initialized() and dist.get_world_size() <= usable_cores()


def _all_of(store: Store, key: str, world_size: int, timeout: timedelta) -> list[str]:
    """Wait for `key` of every rank in `store`, and return the values."""
    keys = [key.format(rank) for rank in range(world_size)]
    wait_for(store, keys, limit=timeout)
    return [store.get(key).decode() for key in keys]


_of_this_process: WeakSet[Peers] = WeakSet()


def _after_fork() -> None:
    for peers in list(_of_this_process):
        peers.forget()
    _of_this_process.clear()


os.register_at_fork(after_in_child=_after_fork)

"""Point-to-point messages with tensors between ranks on several hosts, over a connection for each pair of ranks.

A thread for each other rank receives its messages, so that no sender waits for a reader.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from .mailbox import Mailbox, Meta, flattened
from .rank_server import exactly, fill, shut
from .shared_memory import SharedMemory

_FRAME = struct.Struct("=QI")  # bytes of the message, number of tensors
_SIZE = struct.Struct("=Q")
_Arrived = deque[tuple[bytes, list[torch.Tensor]]]


class HostMailbox(Mailbox):
    """A mailbox of ranks on any hosts.

    Parameters
    ----------
    memory, ranks
        As in :class:`.Mailbox`.
    links : mapping of int to socket
        Connections to the other ranks, by their numbers in the mailbox.
    """

    def __init__(self, memory: SharedMemory, ranks: Sequence[int], links: Mapping[int, socket.socket]) -> None:
        super().__init__(memory, ranks)
        self._links = dict(sorted(links.items()))
        self._arrived: dict[int, _Arrived] = {rank: deque() for rank in self._links}
        self._news, news = socket.socketpair()
        for end in (self._news, news):
            end.setblocking(False)
        self._poll.register(self._news, select.POLLIN)
        for rank, link in self._links.items():
            arguments = link, self._arrived[rank], news
            threading.Thread(target=_take_in, args=arguments, name="dtrain-mail", daemon=True).start()
        weakref.finalize(self, _end, [*self._links.values(), self._news, news])

    def send(self, rank: int, message: Any, tensors: Sequence[torch.Tensor] = ()) -> None:
        """Send a message, whatever the other rank is doing."""
        flat, metas, end = flattened(tensors)
        text = pickle.dumps((message, metas), protocol=pickle.HIGHEST_PROTOCOL)
        link = self._links[rank]
        try:
            link.sendall(_FRAME.pack(len(text), len(flat)) + b"".join(_SIZE.pack(len(data)) for data in flat) + text)
            for data in flat:
                link.sendall(data)
        except OSError as error:
            raise RuntimeError(f"Connection with rank {self._ranks[rank]}: it has left.") from error
        except BaseException:  # an interrupt: the stream's message boundaries are lost
            shut(link)
            raise
        self.num_bytes += end

    def received(self) -> Iterator[tuple[int, Any, list[torch.Tensor]]]:
        """Yield the messages that the receiving threads have stored."""
        for rank, arrived in self._arrived.items():
            while arrived:
                text, flat = arrived.popleft()
                message, metas = pickle.loads(text)
                self._memory.num_read += sum(map(len, flat))
                with torch._C.DisableTorchFunction(), torch.no_grad():
                    tensors = [_as(meta, data) for meta, data in zip(metas, flat, strict=True)]
                yield rank, message, tensors

    def _awake(self) -> None:
        with suppress(BlockingIOError):
            self._news.recv(1 << 10)


def _as(meta: Meta, data: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the buffer `data`, which no other tensor uses, with the shape and strides that it was sent with."""
    return torch.empty(0, dtype=meta.dtype, device="cpu").set_(data.untyped_storage(), 0, meta.shape, meta.stride)


def _take_in(link: socket.socket, arrived: _Arrived, news: socket.socket) -> None:
    with suppress(OSError, EOFError):  # the other rank or this rank has left
        while True:
            size, number = _FRAME.unpack(exactly(link, _FRAME.size))
            sizes = [_SIZE.unpack(exactly(link, _SIZE.size))[0] for _ in range(number)]
            text, flat = exactly(link, size), []
            for length in sizes:
                flat.append(torch.empty(length, dtype=torch.uint8, device="cpu"))
                if length:
                    fill(link, flat[-1].numpy().data)
            arrived.append((text, flat))
            with suppress(BlockingIOError):  # the socket is full of earlier wake-ups
                news.send(b"+")


def _end(sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        shut(one)
        one.close()

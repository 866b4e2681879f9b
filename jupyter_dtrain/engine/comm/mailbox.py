"""Point-to-point messages with tensors between any two ranks, without collectives.

On one host, each rank has an in-memory file that the others read. A message stays in the sender's file until the receiver, which is woken,
has read it. No sender waits: unread messages make the file longer. Between hosts, messages go over connections (``host_mailbox.py``).
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import struct
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .shared_memory import SharedMemory

_WORD = struct.Struct("=Q")
_PLACE = struct.Struct("=QQ")  # offset and size of a message
RING = 256  # most unread messages to one rank
KEPT = 1 << 25  # bytes of the file beyond which it is truncated once everything is read
LOOK, PATIENCE = 100, 100  # milliseconds between checks for ranks in collectives, and how many checks may find some
_TAG = 0x50495045


class Meta(NamedTuple):
    """dtype, shape, strides and offset of a tensor in a message."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Mailbox(ABC):
    """Sends and receives this rank's messages. Collective.

    Parameters
    ----------
    memory : SharedMemory
        Connects the ranks.
    ranks : sequence of int
        Ranks that exchange messages, including this one; a mailbox numbers them by their positions here.

    Attributes
    ----------
    rank, num_ranks : int
    num_bytes : int
        Bytes of tensors sent.
    """

    def __init__(self, memory: SharedMemory, ranks: Sequence[int]) -> None:
        self._memory, self._ranks = memory, [*ranks]
        self.rank, self.num_ranks = self._ranks.index(memory.rank), len(self._ranks)
        self.num_bytes = 0
        self._poll = select.poll()

    @abstractmethod
    def send(self, rank: int, message: Any, tensors: Sequence[torch.Tensor] = ()) -> None:
        """Send a picklable message and CPU tensors to another rank, without waiting for it."""

    @abstractmethod
    def received(self) -> Iterator[tuple[int, Any, list[torch.Tensor]]]:
        """Yield ``(sender, message, tensors)`` for each message that has arrived."""

    @abstractmethod
    def _awake(self) -> None:
        """Consume the wake-up signals that :attr:`_poll` reported."""

    def wait(self, work: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Repeat `work` whenever a message arrives, until `is_over` returns true.

        Raises
        ------
        RuntimeError
            A rank has left, or is at another place of the cell.
        """
        elsewhere = 0
        while True:
            work()
            if is_over():
                return
            if self._poll.poll(LOOK):
                self._awake()
                elsewhere = 0
            elif self._memory.is_awaited(self._ranks):
                elsewhere += 1
                if elsewhere > PATIENCE:
                    self._memory.barrier(_TAG)  # raises an error with the cause
                    raise RuntimeError("The ranks are at different lines of the cell: one of them does not call a model that others call.")


class FileMailbox(Mailbox):
    """A mailbox of ranks on one host, which read each other's files."""

    def __init__(self, memory: SharedMemory, ranks: Sequence[int]) -> None:
        super().__init__(memory, ranks)
        # The file's header: for each other rank the number of messages sent to it and of its messages read; then the ring buffers.
        self._head = -(-self.num_ranks * (2 * _WORD.size + RING * _PLACE.size) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._file = os.memfd_create("jupyter-dtrain-mailbox", os.MFD_CLOEXEC)
        os.ftruncate(self._file, self._head)
        self._own = mmap.mmap(self._file, self._head)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._files, self._wakes = self._of_these(memory.exchange_files(self._file)), self._of_these(memory.exchange_files(self._wake))
        self._heads = {rank: mmap.mmap(file, self._head, access=mmap.ACCESS_READ) for rank, file in self._files.items()}
        self._counts, self._theirs = counts_in(self._own), {rank: counts_in(head) for rank, head in self._heads.items()}
        for file in (*self._files.values(), *self._wakes.values()):
            os.set_inheritable(file, False)
        weakref.finalize(self, _close, (self._file, self._wake, *self._files.values(), *self._wakes.values()))
        self._sent, self._read = [0] * self.num_ranks, [0] * self.num_ranks
        self._unread: list[tuple[int, int, int, int]] = []  # begin, end, rank, number
        self._poll.register(self._wake, select.POLLIN)

    def _of_these(self, files: dict[int, int]) -> dict[int, int]:
        """Return the files of the other ranks in this mailbox, and close the rest."""
        found = {number: files.pop(rank) for number, rank in enumerate(self._ranks) if rank in files}
        _close([*files.values()])
        return found

    def send(self, rank: int, message: Any, tensors: Sequence[torch.Tensor] = ()) -> None:
        """Write the message to this rank's file and wake the receiver."""
        flat, metas, end = flattened(tensors)
        text = pickle.dumps((message, metas), protocol=pickle.HIGHEST_PROTOCOL)
        start = -(-(_WORD.size + len(text)) // 64) * 64
        begin = self._place(rank, start + end)
        self._write(_WORD.pack(len(text)) + text, begin)
        for meta, data in zip(metas, flat, strict=True):
            self._write(data, begin + start + meta.offset)
        number = self._sent[rank]
        _PLACE.pack_into(self._own, self._ring(rank, number), begin, start + end)
        self._sent[rank] = number + 1
        self._counts[rank * 2] = number + 1
        os.eventfd_write(self._wakes[rank], 1)
        self.num_bytes += end

    def received(self) -> Iterator[tuple[int, Any, list[torch.Tensor]]]:
        """Read the messages that others have written for this rank."""
        for rank, head in self._heads.items():
            while self._read[rank] < self._theirs[rank][self.rank * 2]:
                begin, length = _PLACE.unpack_from(head, self._ring(self.rank, self._read[rank]))
                message, tensors = self._message(self._files[rank], begin, length)
                self._read[rank] += 1
                self._counts[rank * 2 + 1] = self._read[rank]
                yield rank, message, tensors

    def _awake(self) -> None:
        os.eventfd_read(self._wake)

    def _place(self, rank: int, length: int) -> int:
        """Return an offset with room for a message of `length` bytes."""
        read = {other: counts[self.rank * 2 + 1] for other, counts in self._theirs.items()}
        self._unread = sorted(one for one in self._unread if one[3] >= read[one[2]])
        if self._sent[rank] - read[rank] >= RING:
            raise RuntimeError(f"Rank {rank} does not read what is sent to it.")
        if not self._unread and os.fstat(self._file).st_size > KEPT:
            os.ftruncate(self._file, self._head)
        begin = self._head
        for start, end, *_ in self._unread:
            if begin + length <= start:
                break
            begin = max(begin, end)
        self._unread.append((begin, begin + -(-length // 64) * 64, rank, self._sent[rank]))
        return begin

    def _ring(self, rank: int, number: int) -> int:
        return self.num_ranks * 2 * _WORD.size + (rank * RING + number % RING) * _PLACE.size

    def _write(self, data: Any, offset: int) -> None:
        view, done = memoryview(data), 0
        while done < len(view):
            done += os.pwrite(self._file, view[done:], offset + done)

    def _message(self, file: int, begin: int, length: int) -> tuple[Any, list[torch.Tensor]]:
        (size,) = _WORD.unpack(os.pread(file, _WORD.size, begin))
        message, metas = pickle.loads(os.pread(file, size, begin + _WORD.size))
        start = begin + -(-(_WORD.size + size) // 64) * 64
        tensors = []
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for meta in metas:
                tensor = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="cpu")
                view, done = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data, 0
                while done < len(view):
                    count = os.preadv(file, [view[done:]], start + meta.offset + done)
                    if not count:
                        raise RuntimeError(f"A message of {length} bytes is not there any more.")
                    done += count
                self._memory.num_read += done
                tensors.append(tensor)
        return message, tensors


def counts_in(memory: mmap.mmap) -> memoryview[int]:
    """Return memory as 64-bit counters with atomic access; `struct.pack_into` would write zeros first, visible to other ranks."""
    return memoryview(memory).cast("Q")


def flattened(tensors: Sequence[torch.Tensor]) -> tuple[list[memoryview], list[Meta], int]:
    """Return the bytes of each tensor, its `Meta` with an offset in a concatenation of all, and the size of that."""
    flat: list[memoryview] = []
    metas: list[Meta] = []
    end = 0
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for tensor in tensors:
            dense = tensor.detach().resolve_conj().resolve_neg()
            if not _is_dense(dense):
                dense = dense.contiguous()
            metas.append(Meta(dense.dtype, tuple(dense.shape), dense.stride(), end))
            flat.append(dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy().data)
            end += -(-dense.nbytes // 64) * 64
    return flat, metas, end


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor fills its memory without gaps, in any order of its dims."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)

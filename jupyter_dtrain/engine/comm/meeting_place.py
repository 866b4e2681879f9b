"""Numbered exchanges between ranks: ranks that are at different exchanges get an error with the cause."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection

from .failures import FailedElsewhere, Failures, text_of
from .peer_files import PeerFile
from .peers import Peers

NOTE = 1 << 16  # bytes for a rank's last error
_STATE = struct.Struct("<II")  # number and bytes of the exchange, which are equal on ranks at the same exchange
_FAILED, _FINE, _READ = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD  # in place of bytes: the outcome on a rank
_TOLD = 0xFFFE0000  # in place of bytes, plus a size: rank 0 broadcasts data of that size and continues
_MOST_TOLD = 0xFFFF  # most bytes of such data in one message
_SEEN = 1 << 16  # most bytes of unread data that are searched
_LENGTH = struct.Struct("<II")  # size of the note, and number of the exchanges before it


class MeetingPlace:
    """Barriers and error exchange of the ranks that `peers` connects. All ranks call the same methods in the same order.

    Parameters
    ----------
    peers : Peers
    notes : int
        Offset of a rank's note, `NOTE` bytes long, in its memory.

    Attributes
    ----------
    num_read : int
        Bytes that this rank has read from the others.
    """

    def __init__(self, peers: Peers, *, notes: int) -> None:
        self._peers, self._notes = peers, notes
        self._number = self.num_read = 0
        self._why_apart: str | None = None  # set once ranks were found at different places

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self._peers.memory)

    @property
    def number(self) -> int:
        """Number of exchanges so far."""
        return self._number

    def is_awaited(self, ranks: Collection[int] | None = None) -> bool:
        """Return whether another rank, of `ranks` if given, waits in an exchange or has left."""
        return any(rank != 0 or not self._only_tells() for rank in self._peers.with_news(ranks))

    def _only_tells(self) -> bool:
        """Return whether rank 0 has only sent data by :meth:`of_rank0` and is not in an exchange."""
        sent = self._peers.peek(0, _SEEN)
        at = 0
        while len(sent) >= at + _STATE.size and _is_told(size := _STATE.unpack_from(sent, at)[1]):
            at += _STATE.size + size - _TOLD
        return bool(sent) and at >= len(sent)

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Call `on_lost` when another rank has left, before the error is raised."""
        self._peers.on_lost = on_lost

    def barrier(self, tag: int = 0) -> None:
        """Wait until every rank is here with the same `tag`.

        Raises
        ------
        RuntimeError
            A rank is at another place of the cell.
        """
        try:
            self._number += 1
            self._meet(tag & 0x7FFFFFFF)
        except FailedElsewhere:
            raise
        except BaseException:  # as in `_in_parts`
            self._peers.close()
            raise

    def of_rank0(self, own: bytes) -> bytes:
        """Return `own` of rank 0, which does not wait for the others; other ranks' `own` is ignored. All ranks call this at the same place.

        Raises
        ------
        RuntimeError
            Rank 0 is at another place of the cell.
        """
        self._check()
        told = bytearray()
        try:
            while True:
                piece = self._told(own[len(told) : len(told) + _MOST_TOLD])
                told += piece
                if len(piece) < _MOST_TOLD:
                    return bytes(told)
        except FailedElsewhere:
            raise
        except BaseException:  # as in `barrier`
            self._peers.close()
            raise

    def _told(self, own: bytes) -> bytes:
        """Return one message's worth of rank 0's `own`."""
        if self._peers.rank == 0:
            self._peers.send(_STATE.pack(self._number & 0xFFFFFFFF, _TOLD + len(own)) + own)
            return own
        found = self._peers.receive_from(0, _STATE.size)
        number, size = _STATE.unpack(found)
        if number == self._number & 0xFFFFFFFF and _is_told(size):
            return self._peers.receive_from(0, size - _TOLD)
        self._number += 1  # rank 0 is in an exchange: join it, to report that this rank is elsewhere
        self._peers.send(_STATE.pack(self._number & 0xFFFFFFFF, _TOLD))
        rest = [self._peers.receive_from(rank, _STATE.size) for rank in range(1, self.num_ranks) if rank != self._peers.rank]
        raise self._elsewhere([_STATE.unpack(other) for other in (found, *rest)])

    def exchange_files(self, file: int) -> dict[int, int]:
        """Return the other ranks' open files by rank, in exchange for this rank's. Collective."""
        self.barrier(0x46494C45)
        try:
            return self._peers.exchange_files(file)
        except BaseException:
            self._peers.close()
            raise

    def open_files(self, file: int) -> dict[int, PeerFile]:
        """Let the other ranks read an open file at any time, and return theirs by rank. Collective."""
        self.barrier(0x46494C45)
        try:
            return self._peers.open_files(file)
        except BaseException:
            self._peers.close()
            raise

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self._peers.rank

    def note(self, failure: bytes) -> None:
        """Store an error of this rank, to be reported if ranks are found at different places of the cell."""
        if self._why_apart is not None:
            return
        note = failure[: NOTE - _LENGTH.size]
        memory = self._peers.memory[self._peers.rank]
        start = self._notes
        memory[start : start + _LENGTH.size + len(note)] = _LENGTH.pack(len(note), self._number & 0xFFFFFFFF) + note
        self._peers.show(start, start + _LENGTH.size + len(note))

    def agree(self, failure: bytes | None) -> Failures:
        """Return the failure of each rank, ``None`` for ranks without one. A collective.

        A rank that fails between exchanges gets here while others wait in these exchanges. They receive the failures there, as a
        :class:`.FailedElsewhere`.

        Parameters
        ----------
        failure : bytes, optional
            This rank's serialized error, which must fit into `NOTE` bytes.
        """
        try:
            if failure is not None:
                self.note(failure)
            self._number += 1
            found = self._states(_FINE if failure is None else _FAILED)
            if failure is None and all(size == _FINE for _, size in found):
                return [None] * self.num_ranks
            return self._failures(found, failure)
        except BaseException:
            self._peers.close()
            raise

    def _states(self, size: int) -> list[tuple[int, int]]:
        """Send this rank's state to the others, and return theirs."""
        self._check()
        self._peers.send(_STATE.pack(self._number & 0xFFFFFFFF, size))
        found = [_STATE.unpack(state) for state in self._peers.receive(_STATE.size)]
        while size == _FAILED and self._peers.rank != 0 and _is_told(found[0][1]):  # data that rank 0 sent before it reached this failure
            self._peers.receive_from(0, found[0][1] - _TOLD)
            found[0] = _STATE.unpack(self._peers.receive_from(0, _STATE.size))
        return found

    def _failures(self, found: list[tuple[int, int]], own: bytes | None) -> Failures:
        """Return each rank's noted failure; `found` are the other ranks' states."""
        if any(number != self._number & 0xFFFFFFFF for number, _ in found) or (own is None and all(size != _FAILED for _, size in found)):
            raise self._apart()
        rank = self._peers.rank
        sizes = [size for _, size in found]
        sizes.insert(rank, _FINE if own is None else _FAILED)
        notes = [self._noted(other)[1] if size == _FAILED else None for other, size in enumerate(sizes)]
        self._states(_READ)  # until then no rank overwrites its note
        if own is not None:
            self.note(b"")  # cleared: all ranks raise it
        return notes

    def _noted(self, rank: int) -> tuple[int, bytes]:
        """Return the last note of `rank`, after the number of the exchanges before it."""
        memory, start = self._peers.memory[rank], self._notes
        length, number = _LENGTH.unpack(memory[start : start + _LENGTH.size])
        return number, memory[start + _LENGTH.size : start + _LENGTH.size + length]

    def _meet(self, size: int) -> None:
        """Wait until every rank has sent the same state."""
        self._check()
        state = _STATE.pack(self._number & 0xFFFFFFFF, size)
        self._peers.send(state)
        found = self._peers.receive(_STATE.size)
        if any(other != state for other in found):
            raise self._elsewhere([_STATE.unpack(other) for other in found])

    def _elsewhere(self, states: list[tuple[int, int]]) -> BaseException:
        """Return the error to raise if the others' `states` differ from this rank's. May be a collective."""
        if any(size == _FAILED for _, size in states):
            return FailedElsewhere(self._failures(states, None))
        return self._apart()

    def _apart(self) -> RuntimeError:
        """Return the error to raise if ranks are at different places of the cell."""
        notes = [self._noted(rank)[1] for rank in range(self.num_ranks)]
        differ = len(set(notes)) > 1
        why = (
            _caught([note or None for note in notes])
            if differ
            else "Does the cell branch on something that differs between ranks (`datetime.now()`, an unseeded generator)?"
        )
        self._why_apart = f"The ranks are at different lines of the cell: they called different collectives. {why}"
        return RuntimeError(self._why_apart)

    def fall_apart(self, failures: Failures) -> None:
        """Let each exchange raise an error from now on that names `failures`, as what they have left is no process's. No collective."""
        self._why_apart = f"The ranks have failed at different places of the cell. {_caught(failures)}"

    def _check(self) -> None:
        if self._why_apart is not None:  # the cell has caught this error
            raise RuntimeError(self._why_apart)


def _caught(failures: Failures) -> str:
    """Return a sentence on errors that the cell has caught."""
    raised = [f"Rank {rank} had raised {text_of(failure)}" for rank, failure in enumerate(failures) if failure is not None]
    others = "" if len(raised) == len(failures) else " The others did not raise."
    return f"{'; '.join(raised)}, which the cell caught.{others} Do what may fail before the loop, or leave it uncaught."


def _is_told(size: int) -> bool:
    return _TOLD <= size <= _TOLD + _MOST_TOLD

"""Where ranks of one host meet: each exchange has a number, and ranks that are not at the same one hear of what was raised."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection

from .failures import FailedElsewhere, Failures, text_of
from .peers import Peers

NOTE = 1 << 16  # bytes in which a rank tells of its last error
_STATE = struct.Struct("<II")  # number of the exchange, and bytes of it: the same on all ranks, if they do the same
_FAILED, _FINE, _READ = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD  # in the place of bytes: what a rank has to say of its own part
_LENGTH = struct.Struct("<II")  # of the note, and the number of the exchange that was next when it was written


class MeetingPlace:
    """Where the ranks that `peers` connects wait for each other. All ranks call the same methods, in the same order.

    Parameters
    ----------
    peers : Peers
    notes : int
        Where in the memory of each rank its note lies, `NOTE` bytes long.
    """

    def __init__(self, peers: Peers, *, notes: int) -> None:
        self._peers, self._notes = peers, notes
        self._number = 0
        self._why_apart: str | None = None  # once ranks have been found at different places

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self._peers.memory)

    @property
    def number(self) -> int:
        """How many pieces have been exchanged."""
        return self._number

    def is_awaited(self, ranks: Collection[int] | None = None) -> bool:
        """Return whether another rank, of `ranks` if given, has come to an exchange, and waits there, or has left."""
        return self._peers.has_news(ranks)

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Let `on_lost` be told that another rank has left, before the error is raised."""
        self._peers.on_lost = on_lost

    def barrier(self, tag: int = 0) -> None:
        """Wait until every rank is here, with the same `tag`.

        Raises
        ------
        RuntimeError
            One is at another place of the cell.
        """
        try:
            self._number += 1
            self._meet(tag & 0x7FFFFFFF)
        except FailedElsewhere:
            raise
        except BaseException:  # as in `_in_parts`
            self._peers.close()
            raise

    def exchange_files(self, file: int) -> dict[int, int]:
        """Return the files that the other ranks have opened, by rank, for this rank's. Collective."""
        self.barrier(0x46494C45)
        try:
            return self._peers.exchange_files(file)
        except BaseException:
            self._peers.close()
            raise

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self._peers.rank

    def note(self, failure: bytes) -> None:
        """Leave word of an error of this rank's own, for the case that ranks are found at different places of the cell."""
        if self._why_apart is not None:
            return
        note = failure[: NOTE - _LENGTH.size]
        memory = self._peers.memory[self._peers.rank]
        start = self._notes
        memory[start : start + _LENGTH.size + len(note)] = _LENGTH.pack(len(note), self._number & 0xFFFFFFFF) + note

    def agree(self, failure: bytes | None) -> Failures:
        """Return what has failed on each rank, ``None`` where nothing has. A collective.

        Where ranks make exchanges in what they are to agree on, one that fails comes here while others are in those: they get the answer
        there, as a :class:`.FailedElsewhere`.

        Parameters
        ----------
        failure : bytes, optional
            What this rank has to tell; no longer than `NOTE` allows.
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
        """Tell the others where this rank is, and return where they are."""
        self._check()
        self._peers.send(_STATE.pack(self._number & 0xFFFFFFFF, size))
        return [_STATE.unpack(state) for state in self._peers.receive(_STATE.size)]

    def _failures(self, found: list[tuple[int, int]], own: bytes | None) -> Failures:
        """Return what each rank has noted of its failure; `found` is where the others are."""
        if any(number != self._number & 0xFFFFFFFF for number, _ in found) or (own is None and all(size != _FAILED for _, size in found)):
            raise self._apart()
        rank = self._peers.rank
        sizes = [size for _, size in found]
        sizes.insert(rank, _FINE if own is None else _FAILED)
        notes = [self._noted(other)[1] if size == _FAILED else None for other, size in enumerate(sizes)]
        self._states(_READ)  # before that no note is written over
        if own is not None:
            self.note(b"")  # all ranks have raised it
        return notes

    def _noted(self, rank: int) -> tuple[int, bytes]:
        """Return the number of the exchange before which `rank` has left its last note, and the note."""
        memory, start = self._peers.memory[rank], self._notes
        length, number = _LENGTH.unpack(memory[start : start + _LENGTH.size])
        return number, memory[start + _LENGTH.size : start + _LENGTH.size + length]

    def _meet(self, size: int) -> None:
        """Wait until every rank is here."""
        self._check()
        state = _STATE.pack(self._number & 0xFFFFFFFF, size)
        self._peers.send(state)
        found = self._peers.receive(_STATE.size)
        if any(other != state for other in found):
            states = [_STATE.unpack(other) for other in found]
            if any(size == _FAILED for _, size in states):
                raise FailedElsewhere(self._failures(states, None))
            raise self._apart()

    def _apart(self) -> RuntimeError:
        """Return what to raise where ranks are at different places of the cell."""
        notes = [(rank, *self._noted(rank)) for rank in range(self.num_ranks)]
        differ = len({note for _, _, note in notes}) > 1
        raised = [f"Rank {rank} had raised {text_of(note)}" for rank, _, note in notes if note and differ]
        why = (
            f"{'; '.join(raised)}, which the cell caught. The others did not raise. Do what may fail before the loop, or leave it uncaught."
            if raised
            else "Does the cell branch on something that differs between ranks (a time, an unseeded random number)?"
        )
        self._why_apart = f"The ranks are at different lines of the cell: they called different collectives. {why}"
        return RuntimeError(self._why_apart)

    def _check(self) -> None:
        if self._why_apart is not None:  # the cell has caught that
            raise RuntimeError(self._why_apart)

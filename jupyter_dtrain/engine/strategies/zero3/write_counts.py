"""Write counters of the ranks, which tell whether the rows of all ranks belong together.

A sequence lock whose writers wait for each other: a counter is odd while its rank writes. The rows of all ranks are consistent if all
counters are even and equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...comm.arena import Arena
from ...comm.shared_memory import SharedMemory
from ...tensor.rank0_guard import all_ranks_come
from ...timing import COMMUNICATION, Counted

_WORD = torch.int64


class WriteCounts:
    """The write counters of all ranks.

    Parameters
    ----------
    memory : SharedMemory
        Connects the ranks.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._words = Arena(memory, _WORD.itemsize)  # of each rank: writes begun and ended
        self._writes = self._words.own(0, _WORD.itemsize).view(_WORD)

    @contextmanager
    def writing(self, tag: int) -> Iterator[None]:
        """Let each rank write to its rows in the ``with`` block; no rank reads them there. Collective.

        Who is interrupted there leaves a count that says so: what others have written belongs to nothing then.
        """
        self._barrier(tag)
        self._writes += 1
        yield
        self._writes += 1
        self._barrier(tag)

    def is_consistent(self) -> bool:
        """Return whether no rank is in the middle of a write. No collective: others may have left."""
        own = int(self._writes)
        return own % 2 == 0 and all(word == own for word in self._words_of_others())

    def any_says(self, what: bool) -> bool:
        """Return whether `what` is true on any rank. Collective."""
        all_ranks_come()
        own = torch.tensor([what], dtype=torch.uint8, device="cpu")
        parts = [torch.empty_like(own) for _ in range(self._memory.num_ranks)]
        with Counted(COMMUNICATION):
            self._memory.all_gather(parts, own)
        return any(parts)

    def _words_of_others(self) -> list[int]:
        found = torch.empty(_WORD.itemsize, dtype=torch.uint8, device="cpu")
        words = []
        for rank in range(self._memory.num_ranks):
            if rank != self._memory.rank:
                self._words.read(rank, 0, found)
                words.append(int(found.view(_WORD)))
        return words

    def _barrier(self, tag: int) -> None:
        all_ranks_come()
        with Counted(COMMUNICATION):
            self._memory.barrier(tag)

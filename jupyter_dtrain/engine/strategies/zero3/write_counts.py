"""Write counters of the ranks, which tell whether the rows of all ranks belong together.

A sequence lock whose writers wait for each other: a counter is odd while its rank writes. The rows of all ranks are consistent if all
counters are even and equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ...comm.arena import Arena
from ...comm.collectives import all_gather_object
from ...comm.failures import FailedElsewhere, error_of, to_bytes
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
    def writing(
        self,
        tag: int,
        *,
        finish: Callable[[], None] | None = None,
        after_error: Callable[[], None] | None = None,
        progress: Callable[[], object] = lambda: None,
    ) -> Iterator[None]:
        """Let each rank write to its rows in the ``with`` block; no rank reads them there. Collective.

        Who is interrupted there leaves a count that says so: what others have written belongs to nothing then. An error that all ranks
        raise at the same place is raised when all of them have come to it, as the cell may catch it and read on.

        Parameters
        ----------
        tag : int
            Equal on all ranks.
        finish, after_error : callable, optional
            Called when all ranks have written, before any of them reads: always, and only after an error of all ranks.
        progress : callable
            Returns how far this rank has come when there is an error.

        Raises
        ------
        Exception
            That of the ``with`` block, or that of the first rank which has raised. If others have not, or not there, all exchanges raise
            an error from then on.
        """
        self._barrier(tag)
        self._writes += 1
        error: BaseException | None = None
        try:
            yield
        except (Exception, FailedElsewhere) as raised:
            error = raised
        if error is None and finish is None:
            self._writes += 1
            self._agree(error, progress)
            return
        self._agree(error, progress)
        if finish is not None:
            finish()
        if error is not None and after_error is not None:
            after_error()
        self._writes += 1
        self._barrier(tag)
        if error is not None:
            raise error

    @contextmanager
    def alike(self) -> Iterator[None]:
        """Let all ranks do the same in the ``with`` block, and raise its error when all of them have come to it. Collective."""
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        self._agree(error, lambda: None)
        if error is not None:
            raise error

    @property
    def is_writing(self) -> bool:
        """Whether this rank is in the middle of a write, or was interrupted there."""
        return int(self._writes) % 2 == 1

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

    def _agree(self, error: BaseException | None, progress: Callable[[], object]) -> None:
        """Wait for all ranks, and raise an error if some, but not all, have failed. Collective.

        Raises
        ------
        Exception
        """
        with Counted(COMMUNICATION):
            if isinstance(error, FailedElsewhere):
                failures = error.failures
            else:
                failures = self._memory.agree(None if error is None else to_bytes(error))
            failed = [(rank, failure) for rank, failure in enumerate(failures) if failure is not None]
            if not failed:
                return
            if len(failed) == len(failures):
                places = all_gather_object((type(error).__qualname__, progress()), self._memory)
                if all(place == places[0] for place in places):
                    return
        self._memory.fall_apart(failures)
        if error is not None and not isinstance(error, FailedElsewhere):
            raise error
        raise error_of(failed[0][1], failed[0][0])

    def _barrier(self, tag: int) -> None:
        all_ranks_come()
        with Counted(COMMUNICATION):
            self._memory.barrier(tag)

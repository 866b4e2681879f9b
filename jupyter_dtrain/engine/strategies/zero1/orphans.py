"""Optimizer state of ranks that do not reach a common end of the cell, after an error of one of them or an interrupt.

Collectives are not possible any more. So each rank leaves its part in a file as it ends. It has locked the file from the beginning: the
lock of a rank that was killed is gone, and nothing waits for it.
"""

from __future__ import annotations

import fcntl
import pickle
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from ...comm.process_group import free_others
from .sharded_optimizer import ShardedOptimizerStates

_LOOK = timedelta(milliseconds=10)
Left = tuple[int, dict[int, dict[int, object]]]
"""The last step of a rank, and its part of the state as in :meth:`.ShardedOptimizerStates.state_dict`."""


class OrphanShards:
    """The files in which ranks leave their part: this rank's and those of the others.

    Parameters
    ----------
    folder : Path
        Where they are.
    states : ShardedOptimizerStates
    rank, world_size : int
    generation : int
        Of the ranks.
    """

    def __init__(self, folder: Path, states: ShardedOptimizerStates, *, rank: int, world_size: int, generation: int) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        for file in folder.glob(f"*.{rank}.kept"):  # of an earlier generation
            file.unlink(missing_ok=True)
        self._states, self._rank = states, rank
        self._files = [folder / f"{generation}.{other}.kept" for other in range(world_size)]
        self._own = self._files[rank].open("wb")
        fcntl.lockf(self._own, fcntl.LOCK_EX)  # of this process, and not of those that it forks to load data

    def come_home(self, step: int, limit: timedelta) -> bool:
        """Leave this rank's part in its file, or on rank 0 read those of the others; return whether rank 0 has all, or needs nothing.

        Parameters
        ----------
        step : int
            Of the last step. What is of another one is not taken.
        limit : timedelta
            Time for the others to end.
        """
        if self._own.closed:
            return True
        if self._states.are_home:
            self._own.close()
            self._files[self._rank].unlink(missing_ok=True)
            return True
        if self._rank:
            self._leave(step)
            return True
        if not self._states.needs_others():
            self._states.load_state_dicts([])
            return True
        free_others()  # and they end
        found = self._found(time.monotonic() + limit.total_seconds())
        parts = [one[1] for one in found if one is not None and one[0] == step]
        is_complete = len(parts) == len(found)
        self._states.load_state_dicts(parts if is_complete else [])
        return is_complete

    def _leave(self, step: int) -> None:
        with suppress(OSError), self._own:  # no room: what is there is cut off then
            pickle.dump((step, self._states.state_dict()), self._own, protocol=pickle.HIGHEST_PROTOCOL)

    def _found(self, end: float) -> list[Left | None]:
        """Return what each of the other ranks has left by `end`, a time of ``time.monotonic``."""
        return [self._read(file, end) for file in self._files[1:]]

    def _read(self, file: Path, end: float) -> Left | None:
        while file.exists():
            with file.open("r+b") as handle:
                try:
                    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    if time.monotonic() > end:
                        return None
                else:
                    with suppress(EOFError, pickle.UnpicklingError):  # it had no time, or no room
                        found: Left = pickle.load(handle)
                        return found
                    return None
            time.sleep(_LOOK.total_seconds())
        return None

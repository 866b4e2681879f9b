"""Optimizer state of ranks on several hosts that do not reach a common end of the cell.

Each rank leaves its part in a file on its own host. A file lock cannot tell on another host whether a rank is still alive, so the ranks
announce their files in the store. The notebook's process copies them to the host of rank 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistError

from ....protocol import Message, ShardLeft
from ...comm.rank_store import StoreChannel
from .orphans import Left, OrphanShards
from .sharded_optimizer import ShardedOptimizerStates

SPEED = 2e6
"""Bytes per second, at least, from one host to another by way of the notebook's host."""
_LOOK = timedelta(milliseconds=20)


class DistantOrphans(OrphanShards):
    """A rank's file and those of the others, on their hosts.

    Parameters
    ----------
    folder : Path
        Each host has one of this name.
    states : ShardedOptimizerStates
    rank, world_size, generation : int
    talk : StoreChannel
    tell : callable
        Tells the notebook's process.
    """

    def __init__(
        self,
        folder: Path,
        states: ShardedOptimizerStates,
        *,
        rank: int,
        world_size: int,
        generation: int,
        talk: StoreChannel,
        tell: Callable[[Message], None],
    ) -> None:
        super().__init__(folder, states, rank=rank, world_size=world_size, generation=generation)
        self._talk, self._tell, self._topic = talk, tell, f"kept/{generation}"

    def _leave(self, step: int) -> None:
        super()._leave(step)
        file = self._files[self._rank]
        with suppress(OSError, DistError):  # rank 0 hears of none then
            self._talk.publish(self._topic, str(file.stat().st_size))
            self._tell(ShardLeft(rank=self._rank, name=file.name))

    def _found(self, end: float) -> list[Left | None]:
        nothing: list[Left | None] = [None] * len(self._files[1:])
        try:
            self._talk.publish(self._topic, "0")
            sizes = self._talk.words(self._topic, unless=lambda: time.monotonic() > end)
        except DistError:
            return nothing
        if sizes is None:
            return nothing
        end = max(end, time.monotonic()) + sum(map(int, sizes)) / SPEED
        while not all(file.exists() for file in self._files[1:]):
            if self._talk.is_aborted or time.monotonic() > end:
                return nothing
            time.sleep(_LOOK.total_seconds())
        return super()._found(end)

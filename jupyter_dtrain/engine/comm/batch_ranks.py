"""The ranks over which batches are sharded, if these are not all ranks of a run.

If groups of ranks compute a model together on the same rows of every batch, batches are sharded over the groups. Collectives on batches,
and on values computed from them, run among the ranks that have the same place in their groups: one rank of each group, which together have
all rows. The ranks of each place do this separately and get the same results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

from . import process_group
from .shared_memory import SharedMemory


@dataclass(frozen=True)
class BatchRanks:
    """Connects a rank with its group and with the ranks of the same place in other groups.

    Ranks are numbered group by group.

    Attributes
    ----------
    over : SharedMemory
        Ranks with the same place in their groups, in group order: each has other rows of a batch.
    alike : SharedMemory
        Ranks of this rank's group, in the order of their places: all have the same rows.
    """

    over: SharedMemory
    alike: SharedMemory

    def of_place(self, place: int) -> list[int]:
        """Return the ranks that have `place` in their groups."""
        return [group * self.alike.num_ranks + place for group in range(self.over.num_ranks)]

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Let collectives on batches run among the ranks in `over` until the end of the ``with`` block."""
        global _in_force
        before, _in_force = _in_force, self
        try:
            yield
        finally:
            _in_force = before


_in_force: BatchRanks | None = None


def batch_memory() -> SharedMemory | None:
    """Return the memory of the ranks over which batches are sharded; ``None`` if they share none."""
    return process_group.shared_memory() if _in_force is None else _in_force.over


def alike_memory() -> SharedMemory | None:
    """Return the memory of the ranks that have the same rows of every batch; ``None`` if there are no groups."""
    return None if _in_force is None else _in_force.alike


def memory_of(num_ranks: int) -> SharedMemory | None:
    """Return the memory of the `num_ranks` ranks over which batches are sharded, otherwise of all ranks; ``None`` if they share none."""
    return batch_memory() if _in_force is None or num_ranks == _in_force.over.num_ranks else process_group.shared_memory()


def rank_of(num_ranks: int) -> int:
    """Return this rank's number among the `num_ranks` ranks over which batches are sharded, otherwise its global rank."""
    return dist.get_rank() if _in_force is None or num_ranks != _in_force.over.num_ranks else _in_force.over.rank


def batch_rank() -> int:
    """Return this rank's number among those over which batches are sharded."""
    return dist.get_rank() if _in_force is None else _in_force.over.rank


def num_batch_ranks() -> int:
    """Return the number of ranks over which batches are sharded."""
    return dist.get_world_size() if _in_force is None else _in_force.over.num_ranks

"""The ranks over which batches are sharded, where these are not all of a run.

In groups of ranks that each have the same rows of every batch and compute a model by parts, a batch is sharded over the groups. What is
exchanged of batches, and of what is computed from them, goes among the ranks that have the same place in their groups: one of each group,
and together they have all rows. Each place does so for itself, and all come to the same.
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
    """What connects a rank with those of its group and those of its place.

    Ranks are numbered group by group.

    Attributes
    ----------
    over : SharedMemory
        Ranks with the same place in their groups, in the order of these: each has other rows of a batch.
    alike : SharedMemory
        Those of the rank's group, in the order of their places: all have the same rows.
    """

    over: SharedMemory
    alike: SharedMemory

    def of_place(self, place: int) -> list[int]:
        """Return the ranks with a place in their groups."""
        return [group * self.alike.num_ranks + place for group in range(self.over.num_ranks)]

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Let what is exchanged of batches go among those that have other rows, until the end of the ``with`` block."""
        global _in_force
        before, _in_force = _in_force, self
        try:
            yield
        finally:
            _in_force = before


_in_force: BatchRanks | None = None


def batch_memory() -> SharedMemory | None:
    """Return what connects the ranks over which batches are sharded, if they share memory."""
    return process_group.shared_memory() if _in_force is None else _in_force.over


def alike_memory() -> SharedMemory | None:
    """Return what connects the ranks that have the same rows of every batch; ``None``: there are no others."""
    return None if _in_force is None else _in_force.alike


def memory_of(num_ranks: int) -> SharedMemory | None:
    """Return what connects so many ranks, if they share memory: those over which batches are sharded, or all of a run."""
    return batch_memory() if _in_force is None or num_ranks == _in_force.over.num_ranks else process_group.shared_memory()


def rank_of(num_ranks: int) -> int:
    """Return which of so many ranks this one is: of those over which batches are sharded, or of all."""
    return dist.get_rank() if _in_force is None or num_ranks != _in_force.over.num_ranks else _in_force.over.rank


def batch_rank() -> int:
    """Return which of the ranks over which batches are sharded this one is."""
    return dist.get_rank() if _in_force is None else _in_force.over.rank


def num_batch_ranks() -> int:
    """Return over how many ranks batches are sharded."""
    return dist.get_world_size() if _in_force is None else _in_force.over.num_ranks

"""Sharded rows with a replica in each group of ranks (HSDP): a rank gathers a parameter from its own group, which may be on one host.

Rank ``(g, s)`` of the mesh updates one shard. Its memory also has copies of the shards of all other ranks ``(·, s)``, so that the ranks
of a group together have every row. The copies are refreshed once, after an optimizer step. Without them, ranks of all groups would
read each other's rows in each forward and each backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....parallel_dims import DATA_PARALLEL
from ...comm.arena import Arena, offsets
from ...comm.mesh import Mesh
from ...comm.shared_memory import SharedMemory
from .sharded_rows import Kind, SharedRows, quiet

AXIS = "dp_shard"


class GroupRows(SharedRows):
    """The rows that a rank holds for its group: its own shard, and copies of the shards of its place in the other groups.

    Parameters
    ----------
    kind : Kind
        Along dim 0.
    mesh : Mesh
        Groups along `DATA_PARALLEL`, with ranks along `AXIS`, the inner axis, in each.
    arena : Arena
        Connects the ranks of the group; its others are the ranks of the same place in the other groups.
    starts : sequence of int
        Offset of each rank's rows, copies included, in its memory.
    """

    def __init__(self, kind: Kind, mesh: Mesh, arena: Arena, starts: Sequence[int]) -> None:
        same_place = mesh.ranks_along(DATA_PARALLEL)
        sizes = [kind.num_bytes(rank) for rank in range(mesh.size)]
        step = mesh.degree(AXIS)  # from a rank to that of its place in the next group
        within = [sum(sizes[rank % step : rank : step]) for rank in range(mesh.size)]
        super().__init__(kind, mesh.rank, arena, [start + before for start, before in zip(starts, within, strict=True)])
        group = mesh.ranks_along(AXIS)
        places = [mesh.index(AXIS, rank) for rank in range(mesh.size)]
        self._holders = [(place, starts[group[place]] + before) for place, before in zip(places, within, strict=True)]
        self._others = {rank: index for index, rank in enumerate(same_place) if rank != mesh.rank}
        self._copies = {rank: self._of_arena(self._holders[rank][1], rank) for rank in self._others}

    def fill(self, full: torch.Tensor) -> None:
        """Copy this rank's rows, and those that it replicates, from `full`, (R, ...)."""
        super().fill(full)
        for rank, copy in self._copies.items():
            copy.copy_(full[self.kind.rows_of(rank)])

    def refresh(self) -> None:
        """Copy the rows of this rank's place in the other groups again, after their ranks have written to them."""
        with quiet(), torch.no_grad():
            for rank, copy in self._copies.items():
                if copy.numel():
                    self._arena.read_of_others(self._others[rank], self._places[rank], copy.view(-1).view(torch.uint8))

    def _read_part(self, rank: int, into: torch.Tensor) -> None:
        copy = self._copies.get(rank)
        if copy is None:
            super()._read_part(rank, into)
        else:
            into.copy_(copy)

    def _nearest(self, rank: int) -> tuple[int, int]:
        return self._holders[rank]


def allocate_in_groups(within: SharedMemory, across: SharedMemory, kinds: Sequence[Kind], mesh: Mesh) -> list[GroupRows]:
    """Allocate memory for the rows of `kinds`, the same on all ranks. Collective.

    Parameters
    ----------
    within, across : SharedMemory
        Connect the ranks of this rank's group, and the ranks of its place in all groups.
    kinds : sequence of Kind
    mesh : Mesh
    """
    step = mesh.degree(AXIS)
    of_place = [offsets([sum(map(kind.num_bytes, range(place, mesh.size, step))) for kind in kinds]) for place in range(step)]
    places = [of_place[rank % step] for rank in range(mesh.size)]
    arena = Arena(within, places[mesh.rank][-1], others=across)
    return [GroupRows(kind, mesh, arena, [place[index] for place in places]) for index, kind in enumerate(kinds)]

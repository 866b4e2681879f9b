"""Rows of which each group of ranks has all: a rank reads those of its own group alone, which may be on its own host.

The rows that a rank steps on lie in its memory beside copies of those that the ranks of its place in the other groups have. After a
step it reads these anew: once, where ranks of all groups would read each other's rows in every forward and every backward pass.
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
    """The rows of one thing that a rank has for its group: its own, and those of its place in the other groups.

    Parameters
    ----------
    kind : Kind
        Along dim 0.
    mesh : Mesh
        Groups along `DATA_PARALLEL`, with ranks along `AXIS` in each.
    arena : Arena
        Of the rank's group; the others are those of its place.
    starts : sequence of int
        Where each rank has what it has, in its memory.
    """

    def __init__(self, kind: Kind, mesh: Mesh, arena: Arena, starts: Sequence[int]) -> None:
        within = [_before(kind, mesh, rank) for rank in range(mesh.size)]
        super().__init__(kind, mesh.rank, arena, [start + before for start, before in zip(starts, within, strict=True)])
        group = mesh.ranks_along(AXIS)
        places = [mesh.index(AXIS, rank) for rank in range(mesh.size)]
        self._holders = [(place, starts[group[place]] + before) for place, before in zip(places, within, strict=True)]
        self._others = {rank: index for index, rank in enumerate(mesh.ranks_along(DATA_PARALLEL)) if rank != mesh.rank}
        self._copies = {rank: self._of_arena(self._holders[rank][1], rank) for rank in self._others}

    def fill(self, full: torch.Tensor) -> None:
        """Have what this rank is to have of `full`, (R, ...)."""
        super().fill(full)
        for rank, copy in self._copies.items():
            copy.copy_(full[self.kind.rows_of(rank)])

    def refresh(self) -> None:
        """Read the rows of this rank's place in the other groups, after these have written to them."""
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
    """Return memory for the rows of `kinds`, the same on all ranks. Collective.

    Parameters
    ----------
    within, across : SharedMemory
        Connect the ranks of this one's group, and those of its place in all groups.
    kinds : sequence of Kind
    mesh : Mesh
    """
    places = [offsets([sum(map(kind.num_bytes, of_place(mesh, rank))) for kind in kinds]) for rank in range(mesh.size)]
    arena = Arena(within, places[mesh.rank][-1], others=across)
    return [GroupRows(kind, mesh, arena, [place[index] for place in places]) for index, kind in enumerate(kinds)]


def of_place(mesh: Mesh, rank: int) -> list[int]:
    """Return the ranks that have the place of `rank` in their groups, group by group."""
    return Mesh(rank, mesh.degrees).ranks_along(DATA_PARALLEL)


def _before(kind: Kind, mesh: Mesh, rank: int) -> int:
    """Return the bytes of the rows that lie before those of `rank` where a rank has those of its place in all groups."""
    return sum(kind.num_bytes(other) for other in of_place(mesh, rank)[: mesh.index(DATA_PARALLEL, rank)])

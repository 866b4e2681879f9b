"""``--mesh dp=2,dp_shard=2`` on one rank (HSDP): parameters are replicated over groups of ranks and sharded by rows within each.

PyTorch's HSDP also replicates gradients and optimizer state over the groups. Here these are sharded over all ranks: a rank needs them
only for the rows that it updates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from ....parallel_dims import DATA_PARALLEL
from ...comm.mesh import Mesh
from ...comm.process_group import shared_memory_among
from ...comm.shared_memory import SharedMemory
from ..data_parallel.training import DataParallelTraining
from .gradients import ShardedGradients
from .group_rows import AXIS, GroupRows, allocate_in_groups
from .parameter_registry import LEAST
from .parameter_shard import ParameterShard
from .parameter_store import ParameterStore
from .sharded_rows import Kind
from .sharded_training import Prepare, ShardedTraining, nothing


class GroupStore(ParameterStore):
    """The sharded parameters of one rank, replicated over groups of ranks.

    Parameters
    ----------
    memory, say, least, homes
        As of :class:`.ParameterStore`.
    mesh : Mesh
        Groups along `DATA_PARALLEL`, with ranks along `AXIS` in each. Collective, the first time.
    """

    def __init__(
        self,
        memory: SharedMemory,
        *,
        mesh: Mesh,
        say: Callable[[str], None] = lambda _: None,
        least: int = LEAST,
        homes: Collection[int] = (),
    ) -> None:
        super().__init__(memory, say=say, least=least, homes=homes)
        self._mesh, self._same_place = mesh, mesh.ranks_along(DATA_PARALLEL)
        self._within, self._across = (shared_memory_among(mesh.ranks_along(axis)) for axis in (AXIS, DATA_PARALLEL))
        self.sums_by = mesh.degree(AXIS)

    def _allocate(self, kinds: Sequence[Kind]) -> Sequence[GroupRows]:
        return allocate_in_groups(self._within, self._across, kinds, self._mesh)

    def _finish_write(self, shards: Sequence[ParameterShard]) -> Callable[[], None]:
        """Return the function that copies what the other groups have written."""

        def refresh() -> None:
            for shard in shards:
                shard.storage.refresh()

        return refresh

    def reduce_scatter(self, shard: ParameterShard, gradient: torch.Tensor, rows: torch.Tensor) -> None:
        """Reduce-scatter the mean of `gradient`, (R, ...), into `rows`, (r, ...): within the group, then over groups. Collective."""
        by_rank = [gradient[share.start : share.stop] for share in shard.shares]
        of_group = [rows if rank == self.rank else torch.empty_like(by_rank[rank]) for rank in self._same_place]
        num_places = self._within.num_ranks
        for group, out in enumerate(of_group):
            self._within.reduce_scatter(by_rank[group * num_places :][:num_places], out, factor=1.0 / self.world_size)
        self._across.reduce_scatter(of_group, rows, factor=1.0)


class HybridTraining(ShardedTraining):
    """What a rank trains, sharded within its group.

    Parameters
    ----------
    training, memory, say, least, homes, arrived, prepare
        As of :class:`.ShardedTraining`.
    mesh : Mesh
        As of :class:`GroupStore`.
    """

    def __init__(
        self,
        training: DataParallelTraining,
        memory: SharedMemory,
        *,
        mesh: Mesh,
        say: Callable[[str], None] = lambda _: None,
        least: int = LEAST,
        homes: Collection[int] = (),
        arrived: Sequence[object] = (),
        prepare: Prepare = nothing,
    ) -> None:
        store = GroupStore(memory, mesh=mesh, say=say, least=least, homes=homes)
        self._connect(training, store, ShardedGradients(store), say=say, arrived=arrived, prepare=prepare)

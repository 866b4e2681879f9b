"""``--strategy tensor`` on an engine: all ranks run the cell on full batches, and each computes its shard of linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ....parallel_dims import DATA_PARALLEL
from ....system.resources import size_text
from ...comm.batch_ranks import BatchRanks
from ...comm.process_group import shared_memory_among
from ..data_parallel.strategy import DataParallel
from ..data_parallel.training import DataParallelTraining
from ..zero3.strategy import Zero3
from .groups import GroupTraining
from .layer_training import LayerTraining
from .replicated_training import ReplicatedTraining

AXIS = "tp"


class TensorParallel(Zero3):
    """Shards every large linear layer over the ranks. Parameters are returned as under `zero3`."""

    training = ReplicatedTraining
    _sharded: LayerTraining | None = None
    _batches: BatchRanks | None = None

    def _new_training(self, **options: Any) -> DataParallelTraining:
        mesh = self.context.mesh
        if mesh.degree(DATA_PARALLEL) == 1:
            return super()._new_training(**options)
        if self._shared_memory() is None or not self.context.task.semantics.global_numbers:
            return DataParallelTraining(**options)
        over, alike = (shared_memory_among(mesh.ranks_along(axis)) for axis in (DATA_PARALLEL, AXIS))
        self._batches = BatchRanks(over, alike)
        return GroupTraining(batches=self._batches, **options)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Shard layers in the ``with`` block."""
        memory, say = self._shared_memory(), self.context.reports.notes.say
        has_groups = self.context.mesh.degree(DATA_PARALLEL) > 1
        with DataParallel.installed(self):
            if memory is None:
                if self.context.task.world_size > 1:
                    say(
                        "`--strategy tensor` divides layers over engines that compute on CPUs: "
                        f"each engine {'has all of the model' if has_groups else 'computes all of this cell'}."
                    )
                yield
                return
            self._sharded = LayerTraining(
                self._training,
                memory,
                batches=self._batches,
                patterns=self.context.task.options.shard,
                say=say,
                least=self.least,
                homes=self._homes,
                arrived=self._objects,
                prepare=self._prepare,
            )
            self._sharded.store.named.check()
            with self._sharded.installed():
                yield

    def advise(self) -> None:
        """Note that no layer was sharded, and patterns of ``--shard`` that have matched nothing."""
        if self._sharded is None:
            return
        if (message := self._sharded.store.named.unmatched()) is not None:
            self.context.reports.notes.say(message)
        if not self._sharded.store.has_divided:
            self.context.reports.notes.say(f"`--strategy tensor` shards no layer: none has a weight of {size_text(self.least)} or more.")

"""Tensor parallelism on one rank: all ranks run the cell on whole batches, and each computes its columns of linear layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ....parallel_dims import DATA_PARALLEL
from ....system.resources import size_text
from ..data_parallel.strategy import DataParallel
from ..data_parallel.training import DataParallelTraining
from ..zero3.strategy import Zero3
from .grouped_layers import GroupedTraining
from .layer_training import LayerTraining
from .replicated_training import ReplicatedTraining


class TensorParallel(Zero3):
    """Each rank has some columns of every large linear layer. What returns its parameters is what returns those of `zero3`."""

    _sharded: LayerTraining | GroupedTraining | None = None

    def begin(self, objects: Sequence[object]) -> None:
        """Watch over models, loaders and optimizers: with whole batches, unless there are several groups of ranks."""
        self._is_grouped = self.context.mesh.degree(DATA_PARALLEL) > 1
        self.training = DataParallelTraining if self._is_grouped else ReplicatedTraining  # type: ignore[misc]  # of this cell
        super().begin(objects)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Divide layers, until the end of the ``with`` block."""
        memory, say = self._shared_memory(), self.context.reports.notes.say
        with DataParallel.installed(self):
            if memory is None:
                if self.context.task.world_size > 1:
                    say(
                        "`--strategy tensor` divides layers over engines that compute on the CPUs of one host: "
                        "each engine computes all of this cell."
                    )
                yield
                return
            parts: dict[str, Any] = {"say": say, "least": self.least, "homes": self._homes, "arrived": self._objects}
            if self._is_grouped:
                self._sharded = GroupedTraining(self._training, memory, mesh=self.context.mesh, source=self.context.task.source, **parts)
            else:
                self._sharded = LayerTraining(self._training, memory, **parts)
            with self._sharded.installed():
                yield

    def advise(self) -> None:
        """Tell of a cell of which nothing was divided."""
        if self._sharded is not None and not self._sharded.store.has_divided:
            self.context.reports.notes.say(
                f"`--strategy tensor` has divided no layer: none has a weight of {size_text(self.least)} and more."
            )

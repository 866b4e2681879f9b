"""Tensor parallelism on one rank: all ranks run the cell on whole batches, and each computes its columns of linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ....system.resources import size_text
from ..data_parallel.strategy import DataParallel
from ..zero3.strategy import Zero3
from .layer_training import LayerTraining
from .replicated_training import ReplicatedTraining


class TensorParallel(Zero3):
    """Each rank has some columns of every large linear layer. What returns its parameters is what returns those of `zero3`."""

    training = ReplicatedTraining
    _sharded: LayerTraining | None = None

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
            self._sharded = LayerTraining(self._training, memory, say=say, least=self.least, homes=self._homes, arrived=self._objects)
            with self._sharded.installed():
                yield

    def advise(self) -> None:
        """Tell of a cell of which nothing was divided."""
        if self._sharded is not None and not self._sharded.store.has_divided:
            self.context.reports.notes.say(
                f"`--strategy tensor` has divided no layer: none has a weight of {size_text(self.least)} and more."
            )

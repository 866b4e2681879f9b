"""``--strategy pipeline``: data parallelism in which each block of a model is computed by the rank that has its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..data_parallel.strategy import DataParallel
from ..zero3.strategy import Zero3
from .staged_training import PipelineTraining

_ASKED_FOR = re.compile(r"create_graph|autograd\.grad|torch\.func|backward\([^)]*inputs\s*=")


class Pipeline(Zero3):
    """Each rank has one stage of every model and computes it for all ranks. Parameters are returned as with `zero3`."""

    _sharded: PipelineTraining | None = None
    _off: str | None = None  # why activations are not handed on in the run that is resumed

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Cut models into stages, until the end of the ``with`` block."""
        memory, say = self._shared_memory(), self.context.reports.notes.say
        task = self.context.task
        with DataParallel.installed(self):
            if memory is None or not task.semantics.global_numbers:
                if task.world_size > 1:
                    say("`--strategy pipeline` cuts models for engines that compute on CPUs, with global semantics.")
                yield
                return
            asked_for = _ASKED_FOR.search(task.source)
            self._sharded = PipelineTraining(
                self._training,
                memory,
                mesh=self.context.mesh,
                say=say,
                homes=self._homes,
                arrived=self._objects,
                prepare=self._prepare,
                steps_done=lambda: self.context.reports.observer.step,
                off=None if asked_for is None or self._off is not None else f"`{asked_for[0]}`",
            )
            if self._off is not None:  # which the user was told before
                self._sharded.handover.off = self._off
            with self._sharded.installed():
                yield

    def state_dict(self) -> dict[str, Any]:
        """Return the state of data parallelism, and why activations are not handed on."""
        return {**super().state_dict(), "not_handed_on": None if self._sharded is None else self._sharded.handover.off}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`, which may be of another strategy."""
        super().load_state_dict(state)
        self._off = state.get("not_handed_on")

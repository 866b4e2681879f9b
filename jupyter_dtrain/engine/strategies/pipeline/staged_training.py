"""``--strategy pipeline`` on one rank: connects stages, calls and gradients with the rank's data-parallel training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from ....parallel_dims import DATA_PARALLEL
from ....system.patches import patched
from ...comm.mesh import Mesh
from ...comm.process_group import mailbox, shared_memory_among
from ...comm.shared_memory import SharedMemory
from ..data_parallel.training import DataParallelTraining
from ..zero3.sharded_training import Prepare, ShardedTraining, nothing
from .calls import StageCalls
from .handover import SEEN, Handover
from .stage_gradients import StageGradients
from .stages import AXIS, StageStore


class PipelineTraining(ShardedTraining):
    """Training with the stages of one rank.

    Parameters
    ----------
    training : DataParallelTraining
        Knows the models of the cell.
    memory : SharedMemory
        Connects the ranks.
    mesh : Mesh, optional
        See :class:`.StageStore`.
    say : callable
        Shows a notice to the user.
    homes, arrived, prepare
        See :class:`.ShardedTraining`.
    steps_done : callable
        Returns the number of steps so far.
    off : str, optional
        What in the cell excludes handing on from the start.
    """

    def __init__(
        self,
        training: DataParallelTraining,
        memory: SharedMemory,
        *,
        mesh: Mesh | None = None,
        say: Callable[[str], None] = lambda _: None,
        homes: Collection[int] = (),
        arrived: Sequence[object] = (),
        prepare: Prepare = nothing,
        steps_done: Callable[[], int] = lambda: SEEN,
        off: str | None = None,
    ) -> None:
        store = StageStore(memory, mesh=mesh, say=say, homes=homes)
        group, replicas = store.mesh.ranks_along(AXIS), store.mesh.ranks_along(DATA_PARALLEL)
        self.calls = store.calls = StageCalls(store, mailbox(memory, group), world_size=memory.num_ranks)
        self.handover = store.handover = Handover(self.calls, store.num_stages, steps_done=steps_done, say=say)
        gradients = StageGradients(store, self.calls, self.handover, shared_memory_among(replicas) if len(replicas) > 1 else None)
        self._connect(training, store, gradients, say=say, arrived=arrived, prepare=prepare)
        if off is not None:
            self.handover.turn_off(off)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Patch PyTorch for this strategy until the end of the ``with`` block, within the block of the training."""
        with super().installed(), patched(torch.autograd, "grad", self._grad(torch.autograd.grad)):
            yield

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.handover.refuse("`torch.autograd.grad`", [outputs] if isinstance(outputs, torch.Tensor) else list(outputs))
            return original(outputs, *args, **kwargs)

        return grad

"""``--strategy pipeline`` on one rank: its stages, connected with what the rank trains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from ....system.patches import patched
from ...comm.shared_memory import SharedMemory
from ..data_parallel.training import DataParallelTraining
from ..zero3.sharded_training import ShardedTraining
from .calls import StageCalls
from .handover import SEEN, Handover
from .mailbox import Mailbox
from .stage_gradients import StageGradients
from .stages import StageStore


class PipelineTraining(ShardedTraining):
    """The stages of what a rank trains.

    Parameters
    ----------
    training : DataParallelTraining
        Its models are known. Collective.
    memory : SharedMemory
        Connects the ranks.
    say : callable
        Tells the user something.
    homes, arrived
        As of :class:`.ShardedTraining`.
    steps_done : callable
        Returns how many steps the cell has done.
    off : str, optional
        Why nothing is handed on from the start.
    """

    def __init__(
        self,
        training: DataParallelTraining,
        memory: SharedMemory,
        *,
        say: Callable[[str], None] = lambda _: None,
        homes: Collection[int] = (),
        arrived: Sequence[object] = (),
        steps_done: Callable[[], int] = lambda: SEEN,
        off: str | None = None,
    ) -> None:
        store = StageStore(memory, say=say, homes=homes)
        self.calls = store.calls = StageCalls(store, Mailbox(memory))
        self.handover = store.handover = Handover(self.calls, store.num_stages, steps_done=steps_done, say=say)
        self._connect(training, store, StageGradients(store, self.calls, self.handover), say=say, arrived=arrived)
        if off is not None:
            self.handover.turn_off(off)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take part in what the cell does, until the end of the ``with`` block, within that of the training."""
        with super().installed(), patched(torch.autograd, "grad", self._grad(torch.autograd.grad)):
            yield

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.handover.refuse("`torch.autograd.grad`", [outputs] if isinstance(outputs, torch.Tensor) else list(outputs))
            return original(outputs, *args, **kwargs)

        return grad

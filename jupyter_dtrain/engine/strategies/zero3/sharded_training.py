"""``--strategy zero3`` on one rank: parameters, gradients and the state of optimizers sharded by rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import ClassVar

import torch

from ....system.patches import patched
from ...comm.shared_memory import SharedMemory
from ..data_parallel.training import DataParallelTraining
from .access import ParameterAccess
from .aliased_memory import held_gradients
from .full_state import FullState
from .gradients import ShardedGradients
from .optimizers import ShardedSteps
from .parameter_registry import LEAST
from .parameter_store import ParameterStore
from .scripted import keep_scripted

Prepare = Callable[[ParameterStore], None]


def nothing(_store: ParameterStore) -> None:
    """Leave a store as it is."""


class ShardedTraining:
    """What a rank trains, sharded.

    Parameters
    ----------
    training : DataParallelTraining
        Its models are registered. Collective, if they have parameters to shard.
    memory : SharedMemory
        Connects the ranks.
    say : callable
        Tells the user something.
    least, homes
        As of :class:`.ParameterStore`.
    arrived : sequence of object
        The objects that came from the notebook.
    prepare : callable
        Called with the store before models are sharded.
    """

    store_class: ClassVar[type[ParameterStore]] = ParameterStore
    """Class of the store of parameters."""
    gradients_class: ClassVar[type[ShardedGradients]] = ShardedGradients
    """Class that reduces gradients in a backward pass."""
    access_class: ClassVar[type[ParameterAccess]] = ParameterAccess
    """Class that intercepts operations on parameters."""

    def __init__(
        self,
        training: DataParallelTraining,
        memory: SharedMemory,
        *,
        say: Callable[[str], None] = lambda _: None,
        least: int = LEAST,
        homes: Collection[int] = (),
        arrived: Sequence[object] = (),
        prepare: Prepare = nothing,
    ) -> None:
        store = self.store_class(memory, say=say, least=least, homes=homes)
        self._connect(training, store, self.gradients_class(store), say=say, arrived=arrived, prepare=prepare)

    def _connect(
        self,
        training: DataParallelTraining,
        store: ParameterStore,
        gradients: ShardedGradients,
        *,
        say: Callable[[str], None],
        arrived: Sequence[object],
        prepare: Prepare,
    ) -> None:
        """Shard the parameters of what a rank trains, in `store`. Collective."""
        self._training, self.store = training, store
        self.steps = ShardedSteps(store, arrived, models=training.models.known.all, say=say)
        self.full = FullState(store, self.steps)
        store.before_replicating, store.held_gradients = self.steps.make_whole, partial(held_gradients, objects=arrived, homes=store.homes)
        keep_scripted(store, training.models.known)
        prepare(store)
        training.shard_parameters(store, gradients)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow the cell in the ``with`` block, which is within that of the training."""
        with ExitStack() as stack:
            stack.enter_context(self.store.freed.given_back())
            stack.enter_context(self.access_class(self.store).installed(self._full_tensor))
            stack.enter_context(self.steps.installed())
            # Not `torch.load` itself, which reads where the rank has written if the user's code is what calls it.
            stack.enter_context(patched(torch.serialization, "_load", self.store.own.of_load(torch.serialization._load)))
            yield

    def _full_tensor(self, value: torch.Tensor) -> torch.Tensor:
        return self._training.wholes([value])[0]

"""``--strategy zero3`` on an engine: data parallelism with parameters, gradients and optimizer state sharded by rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import torch

from ....parallel_dims import DATA_PARALLEL
from ...comm.process_group import shared_memory
from ...comm.shared_memory import SharedMemory
from ...dedup import NOTHING_APART, Apart
from ..data_parallel.strategy import DataParallel
from .aliased_memory import OwnMemory, storages_without_arrays
from .group_rows import AXIS
from .hybrid_training import HybridTraining
from .parameter_registry import LEAST
from .parameter_store import ParameterStore
from .sharded_training import ShardedTraining


class Zero3(DataParallel):
    """Shards parameters over the ranks, which gather them from each other where they are used. A single rank shards nothing.

    Attributes
    ----------
    least : int
        The smallest size in bytes of a parameter that is sharded.
    """

    least: ClassVar[int] = LEAST
    reads_others = True
    _sharded: ShardedTraining | None = None
    _is_home = False  # rank 0 has all of it, to take home

    def begin(self, objects: Sequence[object]) -> None:
        """Follow models, loaders and optimizers, and note the memory in which they came."""
        super().begin(objects)
        self._thread = threading.get_ident()
        # What an array looks into as well has one more who holds it, and stays where that sees it.
        self._homes = frozenset(storage._cdata for storage in storages_without_arrays(objects))
        self._objects = objects
        self._own = OwnMemory()
        self._whole: dict[str, Sequence[torch.Tensor]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Shard parameters in the ``with`` block."""
        memory, say = self._shared_memory(), self.context.reports.notes.say
        with super().installed():
            if memory is None or not self.context.task.semantics.global_numbers:
                if self.context.task.world_size > 1:
                    say("`--strategy zero3` shards parameters of engines that compute on CPUs, with global semantics.")
                yield
                return
            mesh = self.context.mesh
            has_groups = min(mesh.degree(DATA_PARALLEL), mesh.degree(AXIS)) > 1
            kind = partial(HybridTraining, mesh=mesh) if has_groups else ShardedTraining
            options: dict[str, Any] = {"homes": self._homes, "arrived": self._objects, "prepare": self._prepare}
            self._sharded = kind(self._training, memory, say=say, least=self.least, **options)
            with self._sharded.installed():
                yield

    def _shared_memory(self) -> SharedMemory | None:
        """Return the memory that connects the ranks; ``None`` for a single rank, even if it was connected in an earlier cell."""
        return shared_memory() if self.context.task.world_size > 1 else None

    def adopt(self, objects: Sequence[object]) -> None:
        """Follow `objects` too, which were read from a snapshot: nothing else has their memory."""
        super().adopt(objects)
        self._own.adopt(objects)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of data parallelism, and which parameters are not sharded, as what is computed of them may round otherwise."""
        whole = {} if self._sharded is None else {self._sharded.store.strategy: self._sharded.store.whole()}
        return {**super().state_dict(), "whole": whole}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`, which may be of another strategy."""
        super().load_state_dict(state)
        self._whole = state.get("whole", {})

    def _prepare(self, store: ParameterStore) -> None:
        """Tell `store` what a snapshot says, if the run is resumed, before models are sharded."""
        store.own.join(self._own)
        for parameter in self._whole.pop(store.strategy, ()):
            store.was_whole.set(parameter, True)

    def materialize(self, *values: Any, unchanged: Iterable[object] = (), **options: Any) -> list[Any]:
        """Gather parameters and optimizer state on rank 0, and return `values` with full tensors for shards of batches. Collective."""
        if self._sharded is not None:
            options["known"] = self._sharded.full.make_whole(on=0)
            self._is_home = True
        return super().materialize(*values, unchanged=unchanged, **options)

    def collect(self, step: int, limit: timedelta) -> bool:  # noqa: ARG002  # nobody is waited for
        """Gather the parameters on this rank, also from ranks that have left: their memory can still be read."""
        is_rescue = threading.get_ident() != self._thread  # only then what another rank than the first has is returned
        if self._sharded is None or (self.context.task.rank and not is_rescue) or (self._is_home and not self.context.task.rank):
            return True
        return self._sharded.full.make_whole_alone()

    def as_it_is(self) -> AbstractContextManager[None]:
        """Let this thread see optimizer state as it is on this rank, in rows, in the ``with`` block."""
        return nullcontext() if self._sharded is None else self._sharded.steps.quiet.on()

    @property
    def is_put_together(self) -> bool:
        """Whether parameters are sharded."""
        return self._sharded is not None

    @contextmanager
    def put_together(self, all_come: Callable[[], bool]) -> Iterator[Apart | None]:
        """Let one rank write the full tensor of each parameter, gradient and state, in the ``with`` block."""
        if self._sharded is None:
            yield NOTHING_APART
        elif all_come():
            with self._sharded.full.standing_in() as apart:
                yield apart
        else:
            yield None

"""``--strategy zero1`` on an engine: data parallelism with sharded optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

from torch import nn

from ....protocol import Message
from ...dedup import NOTHING_APART, Apart
from ..base import RankContext
from ..data_parallel.strategy import DataParallel
from .distant_orphans import DistantOrphans
from .orphans import OrphanShards
from .sharded_optimizer import ShardedOptimizerStates


class Zero1(DataParallel):
    """Shards optimizer state over the ranks; each updates the parameters whose state it has. A single rank has all of it."""

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        task = context.task
        self._states: ShardedOptimizerStates | None = None
        self._orphans: OrphanShards | None = None
        if task.world_size > 1:
            say = context.reports.notes.say
            self._states = ShardedOptimizerStates(rank=task.rank, world_size=task.world_size, say=say, models=self._models)

    def _models(self) -> list[nn.Module]:
        return self._training.models.known.all()

    def prepare(self, objects: Sequence[object]) -> None:
        """Drop the state that other ranks have."""
        task = self.context.task
        if self._states is None:
            return
        self._states.register(objects)
        make = partial(DistantOrphans, talk=self.context.talk, tell=self._tell) if task.spans_hosts else OrphanShards
        self._orphans = make(task.snapshot_folder, self._states, rank=task.rank, world_size=task.world_size, generation=task.generation)

    def _tell(self, event: Message) -> None:
        emitter = self.context.reports.emitter
        emitter.emit(event)
        emitter.flush()  # this process may be ended at any moment

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let optimizers step on the parameters that this rank owns, in the ``with`` block."""
        with super().installed(), nullcontext() if self._states is None else self._states.installed():
            yield

    def materialize(self, *values: Any, unchanged: Iterable[object] = (), **options: Any) -> list[Any]:
        """Gather optimizer state on rank 0, and return `values` with full tensors for shards of batches. Collective."""
        with nullcontext() if self._states is None else self._states.gathered():
            return super().materialize(*values, unchanged=unchanged, **options)

    def collect(self, step: int, limit: timedelta) -> bool:
        """Read on rank 0 the state that the other ranks leave in files as they end."""
        return self._orphans is None or self._orphans.come_home(step, limit)

    def as_it_is(self) -> AbstractContextManager[None]:
        """Let this thread see only the state of this rank, in the ``with`` block."""
        return nullcontext() if self._states is None else self._states.quiet.on()

    def apart(self) -> Apart:
        """Return the sharded optimizers."""
        return NOTHING_APART if self._states is None else self._states.apart()

    @contextmanager
    def put_together(self, all_come: Callable[[], bool]) -> Iterator[Apart | None]:
        """Put placeholders for full state into optimizers, in the ``with`` block."""
        if self._states is None:
            yield NOTHING_APART
        elif all_come():
            with self._states.for_snapshot() as apart:
                yield apart
        else:
            yield None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`. Each rank has been given full state."""
        super().load_state_dict(state)
        if self._states is not None:
            self._states.restored()

"""Data parallelism in which each rank keeps a part of what optimizers keep, on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

from ....protocol import Message
from ...dedup import NOTHING_APART, Apart
from ..base import RankContext
from ..data_parallel.strategy import DataParallel
from .distant_orphans import DistantOrphans
from .orphans import OrphanShards
from .sharded_optimizer import ShardedOptimizerStates


class Zero1(DataParallel):
    """Optimizer states are sharded over the ranks, each of which updates the parameters whose state it keeps. One rank keeps all."""

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        task = context.task
        self._states: ShardedOptimizerStates | None = None
        self._orphans: OrphanShards | None = None
        if task.world_size > 1:
            self._states = ShardedOptimizerStates(rank=task.rank, world_size=task.world_size, say=context.reports.notes.say)

    def prepare(self, objects: Sequence[object]) -> None:
        """Let go of the states that other ranks keep."""
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
        """Let optimizers step on their parts, until the end of the ``with`` block."""
        with super().installed(), nullcontext() if self._states is None else self._states.installed():
            yield

    def materialize(self, *values: Any, unchanged: Iterable[object] = ()) -> list[Any]:
        """Return `values` with the shards of batches in them as full tensors; rank 0 has the states of all optimizers then."""
        with nullcontext() if self._states is None else self._states.gathered():
            return super().materialize(*values, unchanged=unchanged)

    def collect(self, step: int, limit: timedelta) -> bool:
        """Let rank 0 have the states that the others leave in files as they end."""
        return self._orphans is None or self._orphans.come_home(step, limit)

    def as_it_is(self) -> AbstractContextManager[None]:
        """Let this thread see the states that this rank keeps, until the end of the ``with`` block."""
        return nullcontext() if self._states is None else self._states.quiet.on()

    def apart(self) -> Apart:
        """Return which optimizers are sharded."""
        return NOTHING_APART if self._states is None else self._states.apart()

    @contextmanager
    def put_together(self, all_come: Callable[[], bool]) -> Iterator[Apart | None]:
        """Let optimizers have what stands for their whole states, until the end of the ``with`` block."""
        if self._states is None:
            yield NOTHING_APART
        elif all_come():
            with self._states.for_snapshot() as apart:
                yield apart
        else:
            yield None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict`; each rank has been given whole states."""
        super().load_state_dict(state)
        if self._states is not None:
            self._states.restored()

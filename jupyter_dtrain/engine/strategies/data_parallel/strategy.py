"""``--strategy auto`` on an engine: data parallelism. Effects that all ranks have in common, such as files, happen once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, ClassVar

import torch

from ....integrations.base import RunScope
from ....integrations.registry import run_scopes
from ...backward.gradient_exchange import GradientExchange
from ...dedup import NOTHING_APART, Apart
from ...user_frames import users_line
from ..base import Strategy
from ..less_communication.compression import exchange_for
from ..less_communication.every_step import EveryStep
from ..less_communication.local_steps import steps_for
from .training import DataParallelTraining


class DataParallel(Strategy):
    """Shards every batch over the ranks, and averages gradients."""

    training: ClassVar[type[DataParallelTraining]] = DataParallelTraining
    """Class that connects the parts of a rank."""

    _training: DataParallelTraining
    _exchange: GradientExchange
    _steps: EveryStep

    def begin(self, objects: Sequence[object]) -> None:
        """Follow models, loaders and optimizers; those among `objects` are known from the start."""
        context, task, reports = self.context, self.context.task, self.context.reports
        self._training = self._new_training(
            rank=task.rank,
            world_size=task.world_size,
            objects=objects,
            semantics=task.semantics,
            count_targets=task.count_targets,
            whole=task.whole,
            full_batch=task.full_batch,
            control=context.control,
            observer=reports.observer,
            timing=reports.timing,
            notes=reports.notes,
            cursor_log=context.loops,
            run_id=task.run_id,
            sources=task.sources,
            file_log=context.file_log,
            temporary=context.temporary,
        )
        self._exchange = exchange_for(
            task.options, num_ranks=task.world_size, are_alike=task.semantics.global_numbers, say=reports.notes.say
        )
        self._training.exchange_by(self._exchange)
        self._steps = steps_for(task.options, self._training, num_ranks=task.world_size, say=reports.notes.say)
        context.control.on_speeds = self._training.shares.follow

    def _new_training(self, **options: Any) -> DataParallelTraining:
        return self.training(**options)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow the cell in the ``with`` block; what it logs is written once."""
        task, loops, shown = self.context.task, self.context.loops, self.context.shown
        run = RunScope(
            rank=task.rank,
            source=task.source,
            is_jumping=lambda: loops.is_jumping,
            goes_on=lambda: shown.holds,
            talk=self.context.talk,
            users_line=users_line,
        )
        with self._training.installed(), run_scopes(run), self._steps.installed():
            yield

    def share_out(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return `tensors` with dim 0 sharded over the ranks, as if a loader had yielded them as one batch."""
        return self._training.share_out(tensors)

    def materialize(self, *values: Any, unchanged: Iterable[object] = (), **options: Any) -> list[Any]:
        """Return `values` with full tensors for shards of batches, after parameters are equal on all ranks. Collective."""
        self._steps.finish()
        self._training.check_replicas()
        return self._training.materialize(*values, unchanged=unchanged, **options)

    def advise(self) -> None:
        """Show notes about a cell that has sharded nothing, and about gradients that compression has changed too much."""
        self._exchange.finish()
        self._training.say_if_not_sharded()

    @property
    def in_step(self) -> bool:
        """Whether the cell is between a forward and a backward pass, or parameters differ between ranks."""
        return self._training.in_step or self._steps.is_ahead

    @property
    def is_replicated(self) -> bool:
        """Whether all ranks train equal parameters: not with ``--semantics local``, where each sees its own batches."""
        return self.context.task.semantics.global_numbers and self._steps.is_replicated

    def as_it_is(self) -> AbstractContextManager[None]:
        """Let this thread see the rank's own part of tensors, in the ``with`` block."""
        return self._steps.as_it_is()

    @contextmanager
    def put_together(self, all_come: Callable[[], bool]) -> Iterator[Apart | None]:  # noqa: ARG002  # for others
        """Let nobody be asked for what this rank has, until the end of the ``with`` block."""
        with self._steps.as_it_is():
            yield NOTHING_APART

    def collect(self, step: int, limit: timedelta) -> bool:  # noqa: ARG002  # nobody is waited for
        """Have all that this rank has."""
        self._steps.give_up()
        return True

    def full_tensors(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return full tensors for shards of batches. Collective."""
        return self._training.wholes(tensors)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of models, the ranks' speeds and the global view."""
        return {**self._training.state_dict(), "steps": self._steps.state_dict()}

    def adopt(self, objects: Sequence[object]) -> None:
        """Follow `objects` too, which were read from a snapshot."""
        self._steps.adopt(objects)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`."""
        self._training.load_state_dict(state)
        self._steps.load_state_dict(state.get("steps", {}))

    def rng_state(self) -> Any:
        """Return the states of the random streams of models and loaders."""
        return self._training.streams()

    def set_rng_state(self, state: Any) -> None:
        """Resume from a :meth:`rng_state` of this rank."""
        self._training.set_streams(state)

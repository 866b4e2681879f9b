"""Steps of optimizers that do not update each element by itself: they get full parameters, gradients and state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..zero1.group_order import GroupOrder
from .parameter_shard import ParameterShard
from .parameter_store import ParameterStore

_FAILED = 0x4F505449
"""Tag of a step that has ended with an error: ranks where it has not are found at another place."""


class WholeSteps:
    """Steps on full parameters.

    Parameters
    ----------
    store : ParameterStore
    shards_of, make_whole : callable
        Return the shards of an optimizer's parameters; gather its full state.
    is_by_number : callable
        Returns whether an optimizer updates each element by itself, so that its steps are none of these.
    order : GroupOrder
        Agrees on the order of the optimizer's parameters.
    """

    def __init__(
        self,
        store: ParameterStore,
        shards_of: Callable[[Optimizer], list[ParameterShard]],
        is_by_number: Callable[[Optimizer], bool],
        make_whole: Callable[[Optimizer], None],
        order: GroupOrder,
    ) -> None:
        self._order = order
        self._store, self._shards_of, self._is_by_number, self._make_whole = store, shards_of, is_by_number, make_whole
        self._open: list[tuple[FrameType, Sequence[ParameterShard]]] = []  # the steps under way, by the frame that calls their hooks
        store.before_sync = self._end_failed

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow steps in the ``with`` block."""
        with ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(self._begins).remove)
            stack.callback(register_optimizer_step_post_hook(self._ends).remove)
            yield

    @contextmanager
    def step(self, optimizer: Optimizer) -> Iterator[None]:
        """Make a step in the ``with`` block that calls no model. Collective."""
        shards = self._make_ready(optimizer)
        try:
            with self._store.writes.alike():
                yield
        finally:
            self._put_back(shards)
        self._store.sync()

    def _begins(self, optimizer: Optimizer, *_: object) -> None:
        if not self._is_by_number(optimizer):
            if self._shards_of(optimizer):
                self._order.agree(optimizer)
            self._store.sync()
            self._open.append((sys._getframe(1), self._make_ready(optimizer)))

    def _ends(self, *_: object) -> None:
        self._end_failed()  # steps within this one whose error it has caught
        if self._open and self._open[-1][0] is sys._getframe(1):
            self._put_back(self._open.pop()[1])
            self._store.sync()

    def _end_failed(self) -> None:
        """End the steps that have ended with an error, of which no hook tells. Collective, if there are any."""
        while self._open and not _is_running(self._open[-1][0]):
            self._store.memory.barrier(_FAILED)
            self._put_back(self._open.pop()[1])

    def _make_ready(self, optimizer: Optimizer) -> list[ParameterShard]:
        """Make parameters, gradients and state full, and return the shards of the parameters."""
        self._make_whole(optimizer)
        shards = self._shards_of(optimizer)
        self._store.fetch(shards)
        for shard in shards:
            shard.uses += 1
            shard.is_pinned = True
            shard.parameter.__class__ = nn.Parameter
            if shard.gradient is not None:
                shard.make_gradient_full(self._store.full_tensor(shard.read_gradient()).detach())
        return shards

    def _put_back(self, shards: Sequence[ParameterShard]) -> None:
        for shard in shards:
            if self._store.shard_of(shard.parameter) is shard:
                shard.uses -= 1
                shard.is_pinned = False
                shard.parameter.__class__ = shard.kind()
                shard.mark_written()


def _is_running(frame: FrameType) -> bool:
    """Return whether this thread is within the call of `frame`."""
    now: FrameType | None = sys._getframe(1)
    while now is not None and now is not frame:
        now = now.f_back
    return now is frame

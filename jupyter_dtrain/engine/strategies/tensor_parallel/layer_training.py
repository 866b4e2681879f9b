"""``--strategy tensor`` on one rank: its shards of linear layers, connected with what the rank trains."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import unwrap
from typing import Any

import torch
from torch import nn

from ....system.patches import patched
from ...comm.batch_ranks import BatchRanks
from ...comm.shared_memory import SharedMemory
from ..data_parallel.training import DataParallelTraining
from ..zero3.access import ParameterAccess
from ..zero3.sharded_training import Prepare, ShardedTraining, nothing
from .groups import GroupGradients
from .layer_gradients import LayerGradients, refuse_parts
from .layer_parameter import LayerParameter
from .layers import LayerStore

_SET_TO_ZERO = (unwrap(torch.optim.Optimizer.zero_grad).__code__, unwrap(nn.Module.zero_grad).__code__)
"""Functions that use gradients and treat all of their rows alike."""


class LayerAccess(ParameterAccess):
    """Intercepts operations of the cell on parameters; that of a linear layer is computed on shards."""

    _store: LayerStore

    def _gradient(self, func: Any, access: str, parameter: nn.Parameter, *value: Any) -> Any:
        shard = self._store.shard_of(parameter)
        if isinstance(shard, LayerParameter) and shard.is_packed and access == "__get__" and sys._getframe(2).f_code in _SET_TO_ZERO:
            return shard.gradient if shard.gradient is not None else super()._gradient(func, access, parameter)
        return super()._gradient(func, access, parameter, *value)

    def _touched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is nn.functional.linear:
            result = self._store.linear(*args, **kwargs) if {*kwargs} <= {"weight", "bias"} else self._store.linear(**_named(args, kwargs))
            if result is not None:
                return result
        elif func is nn.functional.multi_head_attention_forward:
            found = self._store.attention.call(*args, **kwargs)
            if found is not None:
                return found
        return super()._touched(func, args, kwargs)


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    rest = dict(kwargs)
    return {"given": rest.pop("input"), **rest} if not args else dict(zip(("given", "weight", "bias"), args, strict=False)) | rest


class LayerTraining(ShardedTraining):
    """The sharded layers of what a rank trains, on full batches, or with groups on the shard of its group.

    Parameters
    ----------
    training : DataParallelTraining
    memory : SharedMemory
    batches : BatchRanks, optional
        As of :class:`.LayerStore`.
    say, arrived, prepare
        As of :class:`.ShardedTraining`, as are `options`.
    """

    access_class = LayerAccess
    store: LayerStore

    def __init__(
        self,
        training: DataParallelTraining,
        memory: SharedMemory,
        *,
        batches: BatchRanks | None = None,
        say: Callable[[str], None] = lambda _: None,
        arrived: Sequence[object] = (),
        prepare: Prepare = nothing,
        **options: Any,
    ) -> None:
        store = LayerStore(memory, batches=batches, say=say, **options)
        gradients = LayerGradients(store) if batches is None else GroupGradients(store, batches)
        self._has_groups = batches is not None
        self._connect(training, store, gradients, say=say, arrived=arrived, prepare=prepare)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow the cell in the ``with`` block, which is within that of the training."""
        with super().installed(), self.store.autocast.followed(), patched(torch.autograd, "grad", self._grad(torch.autograd.grad)):
            yield

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `original` so that it also returns gradients inside a backward pass, and leaves none in parameters."""

        @wraps(original)
        def grad(*args: Any, **kwargs: Any) -> Any:
            if not self.store.in_pass:
                outputs = args[0] if args else kwargs.get("outputs", ())
                if not self._has_groups:
                    refuse_parts([outputs] if isinstance(outputs, torch.Tensor) else [*outputs])
                self.store.sync()
            before, self.store.collecting = self.store.collecting, frozenset()
            try:
                return original(*args, **kwargs)
            finally:
                self.store.collecting = before

        return grad

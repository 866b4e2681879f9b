"""``--strategy tensor`` on one rank: its columns of linear layers, connected with what the rank trains."""

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
from ..zero3.sharded_training import ShardedTraining
from .groups import GroupGradients
from .layer_gradients import LayerGradients, refuse_parts
from .layer_parameter import LayerParameter
from .layers import LayerStore

_SET_TO_ZERO = (unwrap(torch.optim.Optimizer.zero_grad).__code__, unwrap(nn.Module.zero_grad).__code__)
"""What asks for a gradient and does the same to all of its rows."""


class LayerAccess(ParameterAccess):
    """Operations of the cell on parameters, of which a linear layer's own is computed by parts."""

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
    """The divided layers of what a rank trains, which has whole batches, or with groups those of its group.

    Parameters
    ----------
    training : DataParallelTraining
    memory : SharedMemory
    batches : BatchRanks, optional
        As of :class:`.LayerStore`.
    say, arrived
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
        **options: Any,
    ) -> None:
        store = LayerStore(memory, batches=batches, say=say, **options)
        gradients = LayerGradients(store) if batches is None else GroupGradients(store, batches)
        self._has_groups = batches is not None
        self._connect(training, store, gradients, say=say, arrived=arrived)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take part in what the cell does, until the end of the ``with`` block, within that of the training."""
        with super().installed(), patched(torch.autograd, "grad", self._grad(torch.autograd.grad)):
            yield

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `original`, so that it returns gradients within a backward pass too, which leaves none of them."""

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

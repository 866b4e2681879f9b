"""A backward pass that leaves each rank the rows of the gradients of its layers. All ranks run the same pass, so nothing is reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ....errors import UsageError
from ...backward.backward_pass import BackwardPass
from ...tensor.functional_collectives import was_exchanged
from ...tensor.placement_types import GlobalTensor
from ..zero3.gradients import ShardedGradients
from ..zero3.sharded_rows import quiet
from .layer_parameter import LayerParameter
from .layers import LayerStore


def refuse_parts(roots: Sequence[Any]) -> None:
    """Raise if the loss is a global tensor: it was computed from gradients, of which each rank has its rows.

    Raises
    ------
    UsageError
    """
    tensors = [root for root in roots if isinstance(root, torch.Tensor)]
    if any(isinstance(root, GlobalTensor) for root in tensors) or was_exchanged(tensors):
        raise UsageError(
            "The loss is computed from gradients (`p.grad`), which `--strategy tensor` shards. Read their "
            "values as numbers (`.item()`), or use `--strategy zero3`."
        )


class LayerGradients(ShardedGradients):
    """Handles the gradients of layers that are sharded over the ranks.

    Parameters
    ----------
    store : LayerStore
    """

    def __init__(self, store: LayerStore) -> None:
        super().__init__(store)
        self._layers = store

    def begins(self, one: BackwardPass) -> None:
        """Write what the cell has written back to rows; a graph of older values then raises in the pass. Collective."""
        refuse_parts(one.tensors)
        self._layers.sync()

    def around(self, one: BackwardPass) -> BackwardPass:
        """Return a pass that recomputes checkpoints as they were computed, and does not read the values of its ``inputs``."""

        def followed(*args: Any, inputs: Any = None, **given: Any) -> None:
            before, self._layers.in_pass = self._layers.in_pass, True
            try:
                one.original(*args, inputs=None if inputs is None else [*map(self._end, inputs)], **given)
            finally:
                self._layers.in_pass = before

        return replace(one, original=followed)

    def _end(self, one: Any) -> Any:
        if self._layers.shard_of(one) is None:
            return one
        with torch.enable_grad(), quiet():
            return get_gradient_edge(one)

    def during(self, wanted: Sequence[torch.Tensor], reached: Sequence[torch.Tensor]) -> AbstractContextManager[Callable[[], None]]:  # noqa: ARG002  # all ranks come to the same
        """Leave the rows of the gradients of `wanted` from the pass in the ``with`` block."""
        return self._left([shard for leaf in wanted if isinstance(shard := self._layers.shard_of(leaf), LayerParameter)])

    @contextmanager
    def _left(self, shards: Sequence[LayerParameter]) -> Iterator[Callable[[], None]]:
        with quiet():
            # Where the cell has set a gradient, the pass adds to that very tensor, whoever else has it.
            collecting = [shard for shard in shards if shard.parameter.grad is None]

        def leave() -> None:
            for shard in collecting:
                self._leave(shard)

        self._layers.collecting = frozenset(shard.number for shard in collecting)
        try:
            yield leave
        finally:
            self._layers.collecting = frozenset()
            leave()  # what a pass that has failed had come to, as one process has it
            self._layers.sweep()

    def _leave(self, shard: LayerParameter) -> None:
        """Cut a gradient of the full parameter down to rows, and add the gradient that was computed of the rows."""
        found, parameter = shard.collected(), shard.parameter
        with quiet(), torch.no_grad():
            full = parameter.grad
            if full is not None:
                found = full[shard.own] if found is None else full[shard.own] + found
                parameter.grad = None
            if found is None:
                return
            rows = self._layers.gradients.empty(shard.rows.shape, shard.dtype).copy_(found)
        shard.add_gradient(rows)

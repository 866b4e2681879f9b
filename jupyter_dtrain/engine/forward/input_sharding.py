"""Sharding of model inputs at the model's call where no loader has sharded them, and inputs that a model lets require gradients.

A cell may index batches itself or call a model on all data at once. Their inputs are sharded when the model is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ..tensor.batch_shard import BatchShard
from ..tensor.model_io import NeedsFullBatch
from ..tensor.placement_types import GlobalTensor, Shard, from_local

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class InputSharding:
    """Shards the first tensor of a model's call along dim 0, which holds the samples.

    Parameters
    ----------
    share : callable
        Returns the rank's share of a batch of a given number of samples.
    on_shared : callable
        Called for each model call whose input was sharded.
    """

    def __init__(self, share: Callable[[int], BatchShard], on_shared: Callable[[], None]) -> None:
        self._share, self._on_shared = share, on_shared

    def placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return a call's arguments with the first tensor among them sharded, unless one of the tensors already spans the ranks."""
        found = list(_tensors((*args, *kwargs.values())))
        if not found or any(isinstance(tensor, GlobalTensor) for tensor in found):
            return args, kwargs
        first = found[0]
        if isinstance(first, nn.Parameter) or first.layout != torch.strided or not first.dim() or len(first) < 2:
            return args, kwargs
        share = self._share(len(first))
        rows = from_local(first[share.loaded], Shard(0, share))
        self._on_shared()

        def convert(value: Any) -> Any:
            if value is first:
                return rows
            return {key: convert(item) for key, item in value.items()} if type(value) is dict else value

        return tuple(convert(arg) for arg in args), {key: convert(value) for key, value in kwargs.items()}


def _tensors(values: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    """Yield the tensors among a call's arguments and in dicts of them, but not in lists, which have one item per sample."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) is dict:
            yield from _tensors(tuple(value.values()))


# A model may call ``x.requires_grad_()`` in its ``forward`` to differentiate by its input.
#
# Inside the model, that sets the rank's part, which is a tensor of its own. The cell may take gradients with respect to the batch
# afterwards, so the batch itself must require gradients before the model is called.


class MarkedNow(NeedsFullBatch):
    """A model's call let tensors require gradients; these must do so before the call, which is repeated.

    Parameters
    ----------
    indices : list of int
        Indices of the tensors, as in :func:`mark`.
    """

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices


def marked(given: Any, own: Any) -> list[int]:
    """Return the indices of leaves in `given` whose parts in `own` require gradients while they themselves do not."""
    pairs = zip(tree_leaves(given), tree_leaves(own), strict=True)
    return [
        index
        for index, (whole, part) in enumerate(pairs)
        if isinstance(whole, GlobalTensor) and isinstance(part, torch.Tensor) and part.requires_grad and not whole.requires_grad
    ]


def mark(given: Any, indices: Sequence[int]) -> None:
    """Let the leaves of `given` at `indices` require gradients, where they span the ranks and are floating-point."""
    leaves = tree_leaves(given)
    for index in indices:
        if index < len(leaves) and isinstance(leaf := leaves[index], GlobalTensor) and leaf.is_floating_point():
            leaf.requires_grad_()

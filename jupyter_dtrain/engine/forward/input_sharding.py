"""A model's inputs as batches: sharded where no loader has done so, and marked as requiring gradients where the model lets them.

The cell may draw batches by index, or call a model on all data at once; these are then sharded at the model's door.
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
    """Places the inputs of models: the first tensor of a call has a row for each sample, and what else has follows from that.

    Parameters
    ----------
    share : callable
        Returns the rank's share of a batch of so many samples.
    on_shared : callable
        Told of each call whose input was shared out.
    """

    def __init__(self, share: Callable[[int], BatchShard], on_shared: Callable[[], None]) -> None:
        self._share, self._on_shared = share, on_shared

    def placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return a call's arguments with the first tensor among them placed, unless one of them is already."""
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
    """Yield the tensors among a call's arguments, and in a dict of them; a list holds no batch, but one thing per sample."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) is dict:
            yield from _tensors(tuple(value.values()))


# Tensors of a batch that a model lets require gradients: ``x.requires_grad_()`` in its ``forward``, to differentiate by its input.
#
# Inside, that is done to the rank's part, a tensor of its own. The cell may go on to take gradients by the batch, so the batch is to
# require them as well, from before the model is entered.


class MarkedNow(NeedsFullBatch):
    """A model's call has let tensors require gradients that are to do so before it is entered.

    Parameters
    ----------
    indices : list of int
        As :func:`mark` takes them.
    """

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices


def marked(given: Any, own: Any) -> list[int]:
    """Return which of the tensors that a model was given it has let require gradients, in the rank's `own` parts of them."""
    pairs = zip(tree_leaves(given), tree_leaves(own), strict=True)
    return [
        index
        for index, (whole, part) in enumerate(pairs)
        if isinstance(whole, GlobalTensor) and isinstance(part, torch.Tensor) and part.requires_grad and not whole.requires_grad
    ]


def mark(given: Any, indices: Sequence[int]) -> None:
    """Let tensors that a model is given require gradients."""
    leaves = tree_leaves(given)
    for index in indices:
        if index < len(leaves) and isinstance(leaf := leaves[index], GlobalTensor) and leaf.is_floating_point():
            leaf.requires_grad_()

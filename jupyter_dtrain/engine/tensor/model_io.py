"""Convert the arguments and results of a model's call between global tensors (cell) and shards (model).

A model gets the rank's shard of a global tensor. A plain tensor that the cell has made for the batch (noise, an initial hidden state) is
sliced to match. A result is placed along the dim that has one row per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .ops.dispatch import Rules
from .ops.operands import at
from .placement_types import GlobalTensor, Shard, along, from_local, is_row, place_result, to_local
from .redistribute import Exchange

_NO_TENSORS = (type(None), torch.dtype, torch.device)
"""Types that a model may return beside tensors. A number or a string may depend on the shard: a sample count, a mean as a float."""


class _Unrelated(Exception):
    """The arguments cannot be matched: it is unknown which slice of one belongs to the rank's shard of another."""


def _is_plain(values: Any) -> bool:
    return not any(isinstance(value, GlobalTensor) for value in pytree.tree_leaves(values))


class ModelArguments:
    """Converts a model's arguments to the rank's shards.

    Parameters
    ----------
    rules : Rules
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def enter(self, values: Any) -> tuple[Any, Shard | None]:
        """Return a model's arguments with shards in place of global tensors, and the placement of the first sharded one.

        A global ``(B, …)`` becomes ``(b, …)``. A plain tensor that the cell has made for the batch (noise, an initial hidden state
        ``(layers, B, H)``, times of a diffusion) is sliced to match, if one of its first two dims has size ``B``. If the arguments
        cannot be matched, all of them become full tensors. That takes collectives.

        Parameters
        ----------
        values : tuple of tuple and dict
            Positional and keyword arguments.

        Returns
        -------
        tuple of tuple and dict
            The converted arguments.
        Shard or None
            ``None``: no argument is sharded, or all have become full tensors.
        """
        args, kwargs = values
        if self._rules.transforms:
            return self.full(values), None
        if len(args) == 1 and not kwargs and type(args[0]) is GlobalTensor and isinstance(args[0].placement, Shard):
            return ((self._own(args[0], args[0].placement),), kwargs), args[0].placement
        leaves, tree = pytree.tree_flatten(values)
        shards = [value.placement for value in leaves if isinstance(value, GlobalTensor) and isinstance(value.placement, Shard)]
        if not shards:
            return self.full(values), None
        placement = shards[0]
        try:
            if any(other.share != placement.share for other in shards):
                raise _Unrelated
            own = [self._own(value, placement) for value in leaves]
        except _Unrelated:
            return self.full(values), None
        return pytree.tree_unflatten(own, tree), placement

    def full(self, values: Any) -> Any:
        """Return `values` with full tensors. A container without global tensors is not copied, so that a model can write into it."""
        return pytree.tree_map(self._full, values, is_leaf=_is_plain)

    def _full(self, value: Any) -> Any:
        return self._rules.full_tensor(value) if isinstance(value, GlobalTensor) else value

    def _own(self, value: Any, placement: Shard) -> Any:
        if isinstance(value, GlobalTensor):
            self._rules.used = True
            self._rules.take_back_all((value,))
            of_batch = isinstance(value.placement, Shard) and value.placement.share == placement.share  # `enter` raises for other shards
            return to_local(value) if of_batch else self._rules.full_tensor(value)
        if not isinstance(value, torch.Tensor) or isinstance(value, nn.Parameter):
            return value
        dims = [dim for dim, size in enumerate(value.shape) if size == placement.share.total]
        if len(dims) > 1 or (dims and placement.share.total == 1):  # for a batch of one sample, sizes tell nothing
            raise _Unrelated
        return value[at(dims[0], placement.share.loaded)] if dims and dims[0] < 2 else value

    def written(self, tensors: Iterable[torch.Tensor]) -> None:
        """Update the arrays and samples that the cell holds of `tensors`, after a model has written into its shards. A collective."""
        for tensor in tensors:
            if isinstance(tensor, GlobalTensor):
                self._rules.refresh(tensor)

    def smallest(self, placement: Shard) -> int:
        """Return the size of the smallest shard of all ranks."""
        return min(placement.share.sizes)

    def shard_argument(self, value: Any, *, placement: Shard) -> Any:
        """Return one argument, or what an object among the arguments holds, as :meth:`enter` does."""
        try:
            return self._own(value, placement)
        except _Unrelated:  # an attribute of an object among the arguments
            return value

    def add_sample(self, placement: Shard) -> Callable[[Any], Any]:
        """Return a function that converts one argument as :meth:`enter` does and appends one sample.

        The last sample is repeated, so that a batch sorted by length for ``pack_padded_sequence`` stays sorted.
        """
        return self._changed(placement, lambda own, dim, unit: torch.cat([own, own.narrow(dim, own.shape[dim] - unit, unit)], dim))

    def some(self, placement: Shard, samples: slice) -> Callable[[Any], Any]:
        """Return a function that converts one argument as :meth:`enter` does and keeps `samples` of the rank's shard."""
        number = samples.stop - samples.start
        return self._changed(placement, lambda own, dim, unit: own.narrow(dim, samples.start * unit, number * unit))

    def _changed(self, placement: Shard, change: Callable[[torch.Tensor, int, int], torch.Tensor]) -> Callable[[Any], Any]:
        def convert(value: Any) -> Any:
            own = self._own(value, placement)
            if isinstance(value, GlobalTensor) and isinstance(value.placement, Shard):
                return change(own, value.placement.dim, value.placement.unit)
            if isinstance(value, torch.Tensor) and own is not value:
                return change(own, next(d for d in range(2) if value.shape[d] != own.shape[d]), 1)
            return own

        return convert


class NeedsFullBatch(Exception):
    """A model's results do not have one row per sample: the model has to be called on the full batch."""


def place_results(
    values: Any,
    placement: Shard,
    *,
    known: dict[Any, list[int | None]],
    batch_dims: dict[int, int],
    one_more: Callable[[], Any],
    on_new: Callable[[], None],
) -> Any:
    """Return a model's results as global tensors. A collective if their structure is not in `known`.

    A result ``(b, …)`` becomes a shard along dim 0. One with the samples along another dim, as an RNN's state ``(layers, b, H)``, becomes a
    shard along that dim.

    Parameters
    ----------
    values : nested containers of Tensor
        The results.
    placement : Shard
        Placement of the arguments.
    known : dict
        Sample dims of this model's earlier results, by placement and numbers of dims; filled here.
    batch_dims : dict of int to int
        Sample dims that are known already, by the ``id`` of the result.
    one_more : callable
        Calls the model with one more sample and returns the results; used if sizes alone do not tell the sample dim.
    on_new : callable
        Called if the structure is not in `known`, before the ranks compare shapes.

    Raises
    ------
    NeedsFullBatch
        A result has no row per sample: a loss, a statistic, an object, a number that depends on the samples.
    """
    if type(values) is torch.Tensor and (dims := known.get((placement, (values.dim(),)))) and dims[0] is not None:
        return from_local(values, along(dims[0], placement))
    leaves, tree = pytree.tree_flatten(values)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, GlobalTensor | nn.Parameter)]
    if any(not isinstance(leaf, (torch.Tensor, *_NO_TENSORS)) for leaf in leaves):
        on_new()
        raise NeedsFullBatch
    key = (placement, tuple(tensor.dim() for tensor in tensors))
    if key not in known:
        on_new()
        known[key] = _dims(tensors, str(tree), placement, batch_dims, one_more)
    if None in known[key]:
        raise NeedsFullBatch
    found = iter([dim for dim in known[key] if dim is not None])

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, GlobalTensor | nn.Parameter):
            return leaf
        return place_result(leaf, along(next(found), placement))

    return pytree.tree_unflatten([convert(leaf) for leaf in leaves], tree)


def _dims(
    tensors: list[torch.Tensor], structure: str, placement: Shard, batch_dims: dict[int, int], one_more: Callable[[], Any]
) -> list[int | None]:
    """Return the dim of each result that has one row per sample, ``None`` if there is none. A collective: all ranks agree."""
    rows = [max(size, 1) for size in placement.share.sizes]
    answers = Exchange.objects((structure, [tuple(tensor.shape) for tensor in tensors]))
    shapes = [shapes_of_rank for _, shapes_of_rank in answers]
    if any(other != structure for other, _ in answers):  # e.g. a list with one tensor per sample, or per class in the shard
        return [None] * max(len(tensors), 1)
    found: list[list[int]] = []
    for index, tensor in enumerate(tensors):
        of_ranks = [shapes_of_rank[index] for shapes_of_rank in shapes]
        hint = batch_dims.get(id(tensor))
        wanted = range(tensor.dim()) if hint is None else [hint]
        found.append([dim for dim in wanted if is_row(dim, of_ranks, rows, placement)])
    # If all shards have one size, another dim (heads, classes) may have that size by chance.
    by_chance = len(set(rows)) == 1 and [dims[:1] for dims in found] != [[placement.dim]]
    doubted = [len(dims) > 1 or (by_chance and len(dims) == 1) for dims in found]
    if any(doubted):
        more = [leaf for leaf in pytree.tree_leaves(one_more()) if isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter)]
        shapes = Exchange.objects([tuple(tensor.shape) for tensor in more])
        rows = [size + 1 for size in rows]
        for index, dims in enumerate(found):
            if doubted[index]:
                of_ranks = [shapes_of_rank[index] for shapes_of_rank in shapes if index < len(shapes_of_rank)]
                found[index] = [dim for dim in dims if len(of_ranks) == len(rows) and is_row(dim, of_ranks, rows, placement)]
    return [dims[0] if len(dims) == 1 else None for dims in found]

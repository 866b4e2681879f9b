"""Where a model's results leave it: which of their dims has a row per sample, and so how they are placed in the cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .placement_types import GlobalTensor, Shard, along, from_local, is_row, place_result
from .redistribute import Exchange

_NO_TENSORS = (type(None), torch.dtype, torch.device)
"""What a model may return beside tensors. A number or a text may be of the share: its samples, a count of some, a mean as a float."""


class NeedsFullBatch(Exception):
    """A model's result is not one row per sample."""


def place_results(
    values: Any,
    placement: Shard,
    *,
    known: dict[Any, list[int | None]],
    batch_dims: dict[int, int],
    one_more: Callable[[], Any],
    on_new: Callable[[], None],
) -> Any:
    """Return a model's results, of arguments placed as `placement`, with their own placements.

    A result ``(b, …)``, or with the samples along another dim as an RNN's state ``(layers, b, H)``, becomes a shard along that dim.

    Parameters
    ----------
    known : dict
        What was found about this model's results before; filled here.
    batch_dims : dict of int to int
        Dim of the samples in results of which it is known, by their ``id``.
    one_more : callable
        Returns the results with one sample more; asked for where two dims have the size of the batch.
    on_new : callable
        Called before all ranks look at results of a structure that is not `known`.

    Raises
    ------
    NeedsFullBatch
        There is something in it that has no row per sample: a loss, a statistic, an object, a number that goes by the samples.
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
    """Return along which dim each result has a row per sample, as all ranks see it; ``None``: along none."""
    rows = [max(size, 1) for size in placement.share.sizes]
    answers = Exchange.objects((structure, [tuple(tensor.shape) for tensor in tensors]))
    shapes = [shapes_of_rank for _, shapes_of_rank in answers]
    if any(other != structure for other, _ in answers):  # a tensor for each sample, or each class that there is
        return [None] * max(len(tensors), 1)
    found: list[list[int]] = []
    for index, tensor in enumerate(tensors):
        of_ranks = [shapes_of_rank[index] for shapes_of_rank in shapes]
        hint = batch_dims.get(id(tensor))
        wanted = range(tensor.dim()) if hint is None else [hint]
        found.append([dim for dim in wanted if is_row(dim, of_ranks, rows, placement)])
    # With as many rows on each rank, a dim of something else (heads, classes) may have that size by chance.
    by_chance = len(set(rows)) == 1 and [dims[:1] for dims in found] != [[placement.dim]]
    doubted = [
        len(dims) > 1 or (by_chance and len(dims) == 1 and id(tensor) not in batch_dims)
        for dims, tensor in zip(found, tensors, strict=True)
    ]
    if any(doubted):
        more = [leaf for leaf in pytree.tree_leaves(one_more()) if isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter)]
        shapes = Exchange.objects([tuple(tensor.shape) for tensor in more])
        rows = [size + 1 for size in rows]
        for index, dims in enumerate(found):
            if doubted[index]:
                of_ranks = [shapes_of_rank[index] for shapes_of_rank in shapes if index < len(shapes_of_rank)]
                found[index] = [dim for dim in dims if len(of_ranks) == len(rows) and is_row(dim, of_ranks, rows, placement)]
    return [dims[0] if len(dims) == 1 else None for dims in found]

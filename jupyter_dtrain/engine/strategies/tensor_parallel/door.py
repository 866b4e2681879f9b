"""The door of a model: going in, the rows of a group of ranks are put together; coming out, each rank has its own rows again.

Inside, the ranks of a group compute alike on the same rows, so a layer can be computed by columns. Outside, a batch is sharded over all
ranks, as without groups: the cell, its losses and what it reads know of none. Each rank of a group comes to all of the gradient of what
the group computes; so gradients are divided by the number of ranks as they enter, and the sum over all ranks is what it is without groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from ...code_inspection import model_uses
from ...comm.shared_memory import SharedMemory
from ...forward.sharded_call import ShardedCall
from ...tensor.placement_types import GlobalTensor, Shard
from ...tensor.view import NeedsFullBatch
from .columns import Columns, apply

_SIMPLE = (int, float, bool, str, complex, type(None), torch.dtype, torch.device)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Columns, dim: int, own: torch.Tensor) -> torch.Tensor:
        ctx.rows, ctx.dim, ctx.shape = rows, dim, own.shape
        return rows.all_of(own.narrow(dim, 0, rows.size), dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        found = ctx.rows.own(gradient, ctx.dim) * ctx.rows.num_ranks
        return None, None, found if ctx.rows.size else gradient.new_zeros(ctx.shape)


class _Leave(torch.autograd.Function):
    """All results in one node, so that ranks meet in one order whichever of them a loss goes by."""

    @staticmethod
    def forward(ctx: Any, rows: Columns, dims: Sequence[int], *full: torch.Tensor) -> Any:
        ctx.rows, ctx.dims = rows, dims
        return tuple(_own(rows, dim, one) for dim, one in zip(dims, full, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        rows, found = ctx.rows, []
        for dim, gradient in zip(ctx.dims, gradients, strict=True):
            own = gradient if rows.size else gradient.narrow(dim, 0, 0)
            found.append(rows.all_of(own, dim) / rows.num_ranks)
        return None, None, *found


def _own(rows: Columns, dim: int, full: torch.Tensor) -> torch.Tensor:
    """Return a rank's rows; one without any shows one, as it loads a sample that counts for nothing."""
    return rows.own(full, dim) if rows.size else full.narrow(dim, 0, 1).clone()


class Door:
    """The door of the models that a group of ranks computes together.

    Parameters
    ----------
    memory : SharedMemory
        Connects the ranks of the group.
    ranks : sequence of int
        These among all ranks, one behind the other.

    Attributes
    ----------
    is_inside : bool
        Whether the group's rows are being computed.
    """

    def __init__(self, memory: SharedMemory, ranks: Sequence[int]) -> None:
        self._memory, self._ranks = memory, ranks
        self.is_inside = False

    def call(self, sharded: ShardedCall, own: Any) -> Any:
        """Make a model's call on the rows of the group, and return those of what comes out that are the rank's own. Collective."""
        share = sharded.placement.share
        sizes = [share.sizes[rank] for rank in self._ranks]
        if not sum(sizes):  # each rank has the same sample, which counts for nothing
            sizes, loaded = [1, *[0] * (len(sizes) - 1)], share.loaded
        else:
            first = sum(share.sizes[: self._ranks[0]])
            loaded = slice(first, first + sum(sizes))
        rows = Columns(self._memory, sizes)
        given = pytree.tree_leaves(sharded.given)
        leaves, tree = pytree.tree_flatten(own)
        entered = [_entered(rows, one, leaf) for one, leaf in zip(given, leaves, strict=True)]
        drawing = None if sharded.draws is None else sharded.draws.current
        if drawing is not None:
            drawing.go_on_as(loaded, drawing.drawn, drawing.dims)
        self.is_inside = True
        try:
            result = sharded.own_call(pytree.tree_unflatten(entered, tree))
        finally:
            self.is_inside = False
            if drawing is not None:
                drawing.go_on_as(share.loaded, drawing.drawn, drawing.dims)
        if drawing is not None and drawing.per_rank:  # the ranks have not computed alike
            raise NeedsFullBatch
        return _left(sharded, rows, result)


def _entered(rows: Columns, given: Any, own: Any) -> Any:
    if not isinstance(given, GlobalTensor) or not isinstance(given.placement, Shard):
        return own
    return apply(_Enter, rows, given.placement.dim, own)


def _left(sharded: ShardedCall, rows: Columns, result: Any) -> Any:
    """Return the rank's own rows of a result.

    Raises
    ------
    NeedsFullBatch
        Where these are was not learned in the first call.
    """
    leaves, tree = pytree.tree_flatten(result)
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter)]
    dims = _dims(sharded, tuple(leaves[index].dim() for index in places))
    total = sum(rows.sizes)
    if dims is None or any(leaves[index].shape[dim] != total for index, dim in zip(places, dims, strict=True)):
        raise NeedsFullBatch
    with_graph = [(index, dim) for index, dim in zip(places, dims, strict=True) if leaves[index].requires_grad]
    for index, dim in zip(places, dims, strict=True):
        if not leaves[index].requires_grad:
            leaves[index] = _own(rows, dim, leaves[index])
    if with_graph:
        own = apply(_Leave, rows, [dim for _, dim in with_graph], *(leaves[index] for index, _ in with_graph))
        for (index, _), one in zip(with_graph, own, strict=True):
            leaves[index] = one
    return pytree.tree_unflatten(leaves, tree)


def _dims(sharded: ShardedCall, kinds: tuple[int, ...]) -> list[int] | None:
    """Return along which dim the results have rows, as was found for a batch of this size or of another."""
    known = sharded.called.results
    same = [(sharded.placement, kinds), *(key for key in known if key[1] == kinds and key[0].dim == sharded.placement.dim)]
    found = next((known[key] for key in same if key in known), None)
    return None if found is None or len(found) != len(kinds) or None in found else [dim for dim in found if dim is not None]


def why_not(sharded: ShardedCall) -> str:
    """Return why the rows of a group cannot be computed together, alike on all ranks; empty: they can."""
    module, placement = sharded.module, sharded.placement
    if sharded.layers and module.training:
        return "it takes statistics over the batch (BatchNorm)"
    if sharded.draws is None or sharded.draws.is_per_rank(module):
        return "each engine draws its own random numbers"
    if sharded.called.accepted:
        return "its `forward` writes to what it keeps"
    if model_uses(module, lambda _, names: any("checkpoint" in name for name in names)):
        return "its code checkpoints activations"
    loaded = placement.share.loaded.stop - placement.share.loaded.start
    for given, own in zip(pytree.tree_leaves(sharded.given), pytree.tree_leaves(sharded.own), strict=True):
        if isinstance(given, GlobalTensor):
            where = given.placement
            if not isinstance(where, Shard) or where.share != placement.share or own.shape[where.dim] != loaded:
                return "it is called on something else than rows of the batch"
        elif not isinstance(given, (torch.Tensor, *_SIMPLE)):
            return f"it is called on a `{type(given).__name__}`"
    return ""

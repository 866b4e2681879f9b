"""Choose a reducer for a set of leaves, and cache it from pass to pass."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch

from ..comm.batch_ranks import batch_memory, num_batch_ranks
from ..comm.collectives import all_reduce
from .agreeing import AgreeingReducer
from .gradient_exchange import GradientExchange
from .gradient_reducers import BucketReducer, Reducer, SharedMemoryReducer

MAX_REDUCERS = 8
"""Number of cached reducers. A search over models makes new sets of leaves all the time, and a reducer has buffers of its model's size."""


class ReducerCache:
    """The most recently used reducers, by set of leaves.

    Parameters
    ----------
    check : callable
        Checks leaves, in an order that is the same on all ranks, before a reducer is made for them. A collective.

    Attributes
    ----------
    exchange : GradientExchange
        For the reducers that are made from now on.
    """

    def __init__(self, check: Callable[[list[torch.Tensor]], None]) -> None:
        self._check = check
        self.exchange = GradientExchange()
        self._reducers: OrderedDict[tuple[object, frozenset[int]], Reducer] = OrderedDict()

    def clear(self) -> None:
        """Drop all reducers. Must be called before the process group is destroyed."""
        self._reducers.clear()

    def get(
        self,
        leaves: list[torch.Tensor],
        loss: torch.Tensor | None,
        *,
        ordered: Callable[[list[torch.Tensor]], list[torch.Tensor]],
        is_sparse: Callable[[], bool],
        complete: bool,
        backward: Callable[..., None],
    ) -> Reducer:
        """Return the reducer for `leaves` and the value of `loss`. A collective if it is not cached.

        Parameters
        ----------
        leaves : list of Tensor
        loss : Tensor, optional
            The rank's part of the loss, one number.
        ordered : callable
            Returns leaves in an order that is the same on all ranks.
        is_sparse : callable
            Returns whether this rank's backward pass has sparse gradients.
        complete : bool
            Whether this rank's pass reaches all leaves.
        backward : callable
            ``torch.autograd.backward``.
        """
        kind = None if loss is None else (loss.dtype, loss.device)
        key = (kind, frozenset(map(id, leaves)))
        reducer = self._reducers.get(key)
        if reducer is not None:
            self._reducers.move_to_end(key)
            return reducer
        slot = None if loss is None else torch.zeros((), dtype=loss.dtype, device=loss.device, requires_grad=True)
        in_order = ordered(leaves)
        self._check(in_order)
        reducer = self._reducers[key] = _reducer_for(in_order, slot, self.exchange, is_sparse=is_sparse(), complete=complete)
        if num_batch_ranks() > 2 and not reducer.may_lack_leaves:
            reducer.settle_layout(backward)
        if len(self._reducers) > MAX_REDUCERS:
            self._reducers.popitem(last=False)
        return reducer


def _reducer_for(
    leaves: list[torch.Tensor], slot: torch.Tensor | None, exchange: GradientExchange, *, is_sparse: bool, complete: bool
) -> Reducer:
    """Return a new reducer for `leaves`: PyTorch's, unless the ranks share memory or it does not support the gradients. A collective.

    Parameters
    ----------
    leaves, slot, exchange
        As in :class:`.Reducer`.
    is_sparse : bool
        Whether this rank's backward pass has sparse gradients.
    complete : bool
        Whether this rank's pass reaches all leaves.
    """
    lacking = torch.tensor([not complete, is_sparse], dtype=torch.long, device="cpu")
    all_reduce(lacking)
    any_lacks, any_sparse = lacking.tolist()
    are_near = batch_memory() is not None and all(leaf.device.type == "cpu" and leaf.layout == torch.strided for leaf in leaves)
    if any_sparse or (any_lacks and are_near):
        return AgreeingReducer(leaves, slot, exchange)
    return (
        SharedMemoryReducer(leaves, slot, exchange) if are_near else BucketReducer(leaves, slot, exchange, may_lack_leaves=bool(any_lacks))
    )

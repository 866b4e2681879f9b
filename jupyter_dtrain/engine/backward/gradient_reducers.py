"""Reducers of the gradients of a set of leaves, which may be parameters of several models or of none: what all do, and PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..comm.batch_ranks import batch_memory
from ..comm.collectives import reducer_group
from ..tensor.hooks_aside import hooks_set_aside
from ..tensor.placement_types import GlobalTensor
from ..tensor.redistribute import Exchange
from .gradient_exchange import GradientExchange

BUCKETS = 16
"""Of gradients on CPUs: what is left to exchange when a backward pass is over is the last one of them."""
LEAST, MOST = 1 << 16, 25 << 20
"""Bytes of a bucket: for each rank at least, as a ring of ranks passes on a part for each, and PyTorch's own size at most."""


class Reducer:
    """Reduces the gradients of one set of leaves, once in each backward pass.

    Parameters
    ----------
    leaves : list of Tensor
        In an order that all ranks agree on.
    slot : Tensor, optional
        One more, of a single number, in which the value of the loss travels.
    exchange : GradientExchange

    Attributes
    ----------
    may_lack_leaves : bool
        Whether it looks for leaves that a backward pass does not reach.
    """

    may_lack_leaves = False

    def __init__(self, leaves: list[torch.Tensor], slot: torch.Tensor | None, exchange: GradientExchange) -> None:
        self._slot, self._exchange = slot, exchange
        self._leaves = leaves if slot is None else [*leaves, slot]

    def prepare(self, roots: list[torch.Tensor], gradients: list[torch.Tensor | None], value: torch.Tensor | None) -> None:
        """Be ready for a backward pass from `roots` with `gradients`, and the slot's, whose rank's part is `value`, one number."""
        self._exchange.begins(self._leaves)
        if value is not None and self._slot is not None:
            self._slot.grad = None
            # A search for leaves that are not reached begins behind a root: the slot itself would be none.
            roots.append(self._slot.view(value.shape) if self.may_lack_leaves or value.dim() else self._slot)
            gradients.append(value)

    def finish(self) -> None:
        """Reduce what the pass has not, now that it is over."""

    def _average(self, gradients: Sequence[torch.Tensor]) -> None:
        """Average `gradients`, of which the slot's may be one. A collective."""
        value = None if self._slot is None else self._slot.grad
        self._exchange.average([gradient for gradient in gradients if gradient is not value], value)

    def give(self, tensor: GlobalTensor) -> None:
        """Let `tensor`, whose parts were the slot's, have what has come of them."""
        assert self._slot is not None
        assert self._slot.grad is not None
        Exchange.cache_value(tensor, self._slot.grad)

    def settle_layout(self, backward: Callable[..., None]) -> None:
        """Make sure that another reducer of these leaves adds up as this one does. A collective, in which `backward` may run a pass."""


class BucketReducer(Reducer):
    """PyTorch's own reducer, overlapped with the backward pass.

    Parameters
    ----------
    may_lack_leaves : bool
        A reducer that looks for unused parameters costs a walk of the graph and one more collective per pass: not where the first
        pass reaches every leaf on all ranks.
    """

    def __init__(self, leaves: list[torch.Tensor], slot: torch.Tensor | None, exchange: GradientExchange, *, may_lack_leaves: bool) -> None:
        super().__init__(leaves, slot, exchange)
        self.may_lack_leaves = may_lack_leaves
        self._ddp = DistributedDataParallel(
            _Leaves(self._leaves),
            process_group=reducer_group(),
            init_sync=False,
            # A view of a bucket is overwritten by the next pass: a gradient that the cell has kept would change, and one whose `data`
            # it has set would be taken for the bucket.
            gradient_as_bucket_view=False,
            find_unused_parameters=self.may_lack_leaves,
            bucket_cap_mb=bucket_cap(self._leaves, dist.get_world_size()),
        ).eval()  # no model that is in training, when the cell evaluates its own
        if (hook := exchange.bucket_hook(slot)) is not None:
            self._ddp.register_comm_hook(None, hook)

    def prepare(self, roots: list[torch.Tensor], gradients: list[torch.Tensor | None], value: torch.Tensor | None) -> None:
        """Be ready for a backward pass."""
        reducer = self._ddp.reducer
        reducer._rebuild_buckets()
        if self.may_lack_leaves:
            reducer._reset_state()  # passes of other reducers have marked as reached those of the leaves that they came to
        super().prepare(roots, gradients, value)
        reducer.prepare_for_backward(roots if self.may_lack_leaves else [])

    def settle_layout(self, backward: Callable[..., None]) -> None:
        """Take the layout of the buckets from a backward pass over nothing, not from the first that comes along.

        The order in which more than two ranks' parts are added up depends on the layout. A run that goes on from a snapshot has new
        reducers, and is to add up as before.
        """
        if batch_memory() is not None:
            return  # there it is the order of the ranks
        before = [(leaf, leaf.grad) for leaf in self._leaves]
        for leaf in self._leaves:
            leaf.grad = None  # what is there may be part of a graph, and is not to be written to
        with torch.enable_grad():
            roots = [leaf.reshape(-1)[:1].sum() for leaf in self._leaves]
        self._ddp.reducer.prepare_for_backward([])
        with hooks_set_aside(self._leaves):
            backward(roots, [torch.zeros_like(root) for root in roots])
        for leaf, gradient in before:
            leaf.grad = gradient


def bucket_cap(leaves: Sequence[torch.Tensor], num_ranks: int) -> float | None:
    """Return how many MiB of gradients PyTorch's reducer sends at a time; ``None``: as many as it likes.

    That is 25, which GPUs want, and all of many a model that is trained on CPUs: nothing of it is under way before the pass is over.
    """
    if any(leaf.device.type != "cpu" for leaf in leaves):
        return None
    return min(max(sum(leaf.nbytes for leaf in leaves) // BUCKETS, LEAST * num_ranks), MOST) / (1 << 20)


class _Leaves(nn.Module):
    """Leaf tensors, registered or not, in the place where DistributedDataParallel looks for parameters."""

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._leaves = tuple(leaves)

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        for index, leaf in enumerate(self._leaves):
            yield f"leaf_{index}", leaf  # type: ignore[misc]


# Gradients of ranks that share memory, averaged where they lie when a backward pass is over.
#
# PyTorch's reducer copies each gradient into a bucket, and what has come of it back: as much again as the exchange itself, where that is
# done by memory. Its buckets are for networks, which send one while the pass goes on; a processor that copies does not compute meanwhile.
# Small gradients are put together here too, as an exchange costs more than they do.


class SharedMemoryReducer(Reducer):
    """Averages gradients over ranks that share memory; every backward pass reaches all leaves on each of them."""

    def finish(self) -> None:
        """Average the gradients over the ranks."""
        with torch.no_grad():
            self._average([leaf.grad for leaf in self._leaves if leaf.grad is not None])


def without_zeros(leaves: Sequence[torch.Tensor]) -> None:
    """Take gradients away from leaves that no rank has come to, as on one process: an optimizer passes these over."""
    found = [leaf for leaf in leaves if leaf.grad is not None]
    reached = torch.stack([leaf.grad.any() for leaf in found if leaf.grad is not None]).tolist() if found else []
    for leaf, by_another in zip(found, reached, strict=True):
        if not by_another:
            leaf.grad = None

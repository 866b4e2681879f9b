"""Reducers average the gradients of a set of leaf tensors over the ranks.

The leaves may be parameters of several models, or of none. `BucketReducer` uses PyTorch's reducer. `SharedMemoryReducer` is for CPU ranks
that share memory; `agreeing` has the one for sparse or missing gradients.
"""

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
"""Number of buckets for gradients on CPUs: only the last one is left to reduce when the backward pass ends."""
LEAST, MOST = 1 << 16, 25 << 20
"""Bytes of a bucket: the minimum per rank, as a ring all-reduce splits it into one part per rank, and PyTorch's default as maximum."""


class Reducer:
    """Reduces the gradients of one set of leaves, once in each backward pass.

    Parameters
    ----------
    leaves : list of Tensor
        In the same order on all ranks.
    slot : Tensor, optional
        An additional leaf with one element, whose gradient carries the value of the loss.
    exchange : GradientExchange

    Attributes
    ----------
    may_lack_leaves : bool
        Whether a backward pass may miss some of the leaves.
    """

    may_lack_leaves = False

    def __init__(self, leaves: list[torch.Tensor], slot: torch.Tensor | None, exchange: GradientExchange) -> None:
        self._slot, self._exchange = slot, exchange
        self._leaves = leaves if slot is None else [*leaves, slot]

    def prepare(self, roots: list[torch.Tensor], gradients: list[torch.Tensor | None], value: torch.Tensor | None) -> None:
        """Prepare a backward pass; a root for the slot is appended to `roots` and `gradients`.

        Parameters
        ----------
        roots : list of Tensor
        gradients : list of Tensor or None
            Initial gradients of the roots.
        value : Tensor, optional
            The rank's part of the loss, one number: the slot's gradient.
        """
        self._exchange.begins(self._leaves)
        if value is not None and self._slot is not None:
            self._slot.grad = None
            # The reducer's search for unused leaves starts at the roots' `grad_fn`: the slot, a leaf, has none, a view of it has.
            roots.append(self._slot.view(value.shape) if self.may_lack_leaves or value.dim() else self._slot)
            gradients.append(value)

    def finish(self) -> None:
        """Reduce, after the pass, the gradients that were not reduced during it."""

    def _average(self, gradients: Sequence[torch.Tensor]) -> None:
        """Average `gradients`, which may include the slot's. A collective."""
        value = None if self._slot is None else self._slot.grad
        self._exchange.average([gradient for gradient in gradients if gradient is not value], value)

    def give(self, tensor: GlobalTensor) -> None:
        """Cache the reduced value of the slot as the value of the loss `tensor`."""
        assert self._slot is not None
        assert self._slot.grad is not None
        Exchange.cache_value(tensor, self._slot.grad)

    def settle_layout(self, backward: Callable[..., None]) -> None:
        """Make the order of summation independent of the passes that the reducer will see. A collective; may call `backward`."""


class BucketReducer(Reducer):
    """PyTorch's reducer (of DistributedDataParallel), which overlaps communication with the backward pass.

    Parameters
    ----------
    leaves, slot, exchange
        As in :class:`Reducer`.
    may_lack_leaves : bool
        Whether to search for unused leaves. That costs a walk of the graph and one more collective per pass, so it is ``False`` if the
        first pass reaches every leaf on all ranks.
    """

    def __init__(self, leaves: list[torch.Tensor], slot: torch.Tensor | None, exchange: GradientExchange, *, may_lack_leaves: bool) -> None:
        super().__init__(leaves, slot, exchange)
        self.may_lack_leaves = may_lack_leaves
        self._ddp = DistributedDataParallel(
            _Leaves(self._leaves),
            process_group=reducer_group(),
            init_sync=False,
            # The next pass overwrites views of a bucket: a gradient that the cell has kept would change, and one whose `data` the cell
            # has set would be taken for the bucket.
            gradient_as_bucket_view=False,
            find_unused_parameters=self.may_lack_leaves,
            bucket_cap_mb=bucket_cap(self._leaves, dist.get_world_size()),
        ).eval()  # so that it does not count as a model in training while the cell evaluates its own
        if (hook := exchange.bucket_hook(slot)) is not None:
            self._ddp.register_comm_hook(None, hook)

    def prepare(self, roots: list[torch.Tensor], gradients: list[torch.Tensor | None], value: torch.Tensor | None) -> None:
        """Prepare a backward pass; see :meth:`Reducer.prepare`."""
        reducer = self._ddp.reducer
        reducer._rebuild_buckets()
        if self.may_lack_leaves:
            reducer._reset_state()  # passes of other reducers have marked leaves that they have in common as ready
        super().prepare(roots, gradients, value)
        reducer.prepare_for_backward(roots if self.may_lack_leaves else [])

    def settle_layout(self, backward: Callable[..., None]) -> None:
        """Fix the layout of the buckets by a backward pass with zero gradients, instead of by the cell's first pass.

        With more than two ranks the order of summation depends on the layout. A run that resumes from a snapshot has new reducers and must
        sum in the same order as before.
        """
        if batch_memory() is not None:
            return  # shared memory sums in rank order
        before = [(leaf, leaf.grad) for leaf in self._leaves]
        for leaf in self._leaves:
            leaf.grad = None  # an existing gradient may be part of a graph and must not be written to
        with torch.enable_grad():
            roots = [leaf.reshape(-1)[:1].sum() for leaf in self._leaves]
        self._ddp.reducer.prepare_for_backward([])
        with hooks_set_aside(self._leaves):
            backward(roots, [torch.zeros_like(root) for root in roots])
        for leaf, gradient in before:
            leaf.grad = gradient


def bucket_cap(leaves: Sequence[torch.Tensor], num_ranks: int) -> float | None:
    """Return the bucket size of PyTorch's reducer in MiB; ``None``: its default of 25.

    The default suits GPUs. Many models trained on CPUs fit into one bucket of that size, and communication would not overlap the pass.
    """
    if any(leaf.device.type != "cpu" for leaf in leaves):
        return None
    return min(max(sum(leaf.nbytes for leaf in leaves) // BUCKETS, LEAST * num_ranks), MOST) / (1 << 20)


class _Leaves(nn.Module):
    """A module whose ``named_parameters`` are the leaves, registered or not, for DistributedDataParallel."""

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._leaves = tuple(leaves)

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        for index, leaf in enumerate(self._leaves):
            yield f"leaf_{index}", leaf  # type: ignore[misc]


# Gradients of ranks that share memory are averaged in place after the backward pass.
#
# PyTorch's reducer copies each gradient into a bucket and back, which costs as much as the exchange through shared memory itself. Buckets
# are for networks, which transfer one while the pass continues; a CPU that copies cannot compute meanwhile. Small gradients are flattened
# together here too, as the cost of an exchange outweighs that of the copy.


class SharedMemoryReducer(Reducer):
    """Averages gradients of CPU ranks that share memory; every backward pass reaches all leaves on every rank."""

    def finish(self) -> None:
        """Average the gradients over the ranks. A collective."""
        with torch.no_grad():
            self._average([leaf.grad for leaf in self._leaves if leaf.grad is not None])


def without_zeros(leaves: Sequence[torch.Tensor]) -> None:
    """Set all-zero gradients of `leaves` to ``None``: no rank has reached these leaves, and on one process an optimizer skips them."""
    found = [leaf for leaf in leaves if leaf.grad is not None]
    reached = torch.stack([leaf.grad.any() for leaf in found if leaf.grad is not None]).tolist() if found else []
    for leaf, by_another in zip(found, reached, strict=True):
        if not by_another:
            leaf.grad = None

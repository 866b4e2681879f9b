"""Reducers of the gradients of a set of leaves, which may be parameters of several models or of none: what all do, and PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..comm.collectives import reducer_group
from ..comm.process_group import near
from ..comm.shared_memory import SLOT, SharedMemory
from ..tensor.redistribute import Exchange
from .leaf_hooks import hooks_set_aside


class Reducer:
    """Reduces the gradients of one set of leaves, once in each backward pass.

    Parameters
    ----------
    leaves : list of Tensor
        In an order that all ranks agree on.
    slot : Tensor, optional
        One more, of a single number, in which the value of the loss travels.

    Attributes
    ----------
    may_lack_leaves : bool
        Whether it looks for leaves that a backward pass does not reach.
    """

    may_lack_leaves = False

    def __init__(self, leaves: list[torch.Tensor], slot: torch.Tensor | None) -> None:
        self._slot = slot
        self._leaves = leaves if slot is None else [*leaves, slot]

    def prepare(self, roots: list[torch.Tensor], gradients: list[torch.Tensor | None], value: torch.Tensor | None) -> None:
        """Be ready for a backward pass from `roots` with `gradients`, to which the slot is added: `value` is its rank's part."""
        if value is not None and self._slot is not None:
            self._slot.grad = None
            # A search for leaves that are not reached begins behind a root: the slot itself would be none.
            roots.append(self._slot.view(value.shape) if self.may_lack_leaves or value.dim() else self._slot)
            gradients.append(value)

    def finish(self) -> None:
        """Reduce what the pass has not, now that it is over."""

    def give(self, tensor: torch.Tensor) -> None:
        """Let `tensor`, whose parts were the slot's, have what has come of them."""
        assert self._slot is not None
        assert self._slot.grad is not None
        Exchange.know(tensor, self._slot.grad)

    def settle_layout(self, backward: Callable[..., None]) -> None:
        """Make sure that another reducer of these leaves adds up as this one does. A collective, in which `backward` may run a pass."""


def all_reached(complete: bool) -> bool:
    """Return whether the pass of each rank reaches all leaves; this rank's does if it is `complete`. A collective."""
    lacking = torch.tensor([0 if complete else 1])
    dist.all_reduce(lacking, op=dist.ReduceOp.MAX)
    return not lacking.item()


class BucketReducer(Reducer):
    """PyTorch's own reducer, overlapped with the backward pass.

    Parameters
    ----------
    sparse : container of int
        Ids of leaves whose gradients are sparse.
    may_lack_leaves : bool
        A reducer that looks for unused parameters costs a walk of the graph and one more collective per pass: not where the first
        pass reaches every leaf on all ranks.
    """

    def __init__(self, leaves: list[torch.Tensor], slot: torch.Tensor | None, *, sparse: Container[int], may_lack_leaves: bool) -> None:
        super().__init__(leaves, slot)
        self.may_lack_leaves = may_lack_leaves
        self._ddp = DistributedDataParallel(
            _Leaves(self._leaves, sparse),
            process_group=reducer_group(),
            init_sync=False,
            # A view of a bucket is overwritten by the next pass: a gradient that the cell has kept would change, and one whose `data`
            # it has set would be taken for the bucket.
            gradient_as_bucket_view=False,
            find_unused_parameters=self.may_lack_leaves,
        ).eval()  # no model that is in training, when the cell evaluates its own
        if any(id(leaf) in sparse for leaf in leaves):
            # It looks at the types that a function states, which a lambda does not.
            self._ddp.register_comm_hook(self._ddp.process_group, lambda group, bucket: _averaged(group, bucket))

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
        if near() is not None:
            return  # there it is the order of the ranks
        if any(isinstance(module, nn.Embedding) for _, module in self._ddp.module.named_modules()):
            return  # sparse gradients have no layout
        before = [(leaf, leaf.grad, None if leaf.grad is None else leaf.grad.clone()) for leaf in self._leaves]
        with torch.enable_grad():
            roots = [leaf.reshape(-1)[:1].sum() for leaf in self._leaves]
        self._ddp.reducer.prepare_for_backward([])
        with hooks_set_aside(self._leaves):
            backward(roots, [torch.zeros_like(root) for root in roots])
        for leaf, gradient, values in before:
            leaf.grad = gradient
            if gradient is not None and values is not None:
                gradient.copy_(values)  # the reducer has averaged it


def _averaged(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket's gradients. PyTorch itself divides them in place, and sparse ones of two leaves may share their values."""
    mean = bucket.buffer() / group.size()
    return group.allreduce([mean], dist.AllreduceOptions()).get_future().then(lambda done: done.value()[0])


class _Leaves(nn.Module):
    """Leaf tensors, registered or not, in the place where DistributedDataParallel looks for parameters.

    Parameters
    ----------
    leaves : sequence of Tensor
    sparse : container of int
        Ids of those whose gradients are sparse.
    """

    def __init__(self, leaves: Sequence[torch.Tensor], sparse: Container[int]) -> None:
        super().__init__()
        self._leaves = tuple(leaves)
        self._sparse = sparse

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        for index, leaf in enumerate(self._leaves):
            yield f"leaf_{index}", leaf  # type: ignore[misc]

    def named_modules(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield a module for each leaf if some are sparse: an embedding is what tells DistributedDataParallel of a sparse gradient."""
        if not any(id(leaf) in self._sparse for leaf in self._leaves):
            yield "", self
            return
        for index, leaf in enumerate(self._leaves):
            yield f"module_{index}", (_SparseLeaf if id(leaf) in self._sparse else _Leaf)(leaf)


class _Leaf(nn.Module):
    def __init__(self, leaf: torch.Tensor) -> None:
        super().__init__()
        self._leaf = leaf

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield "leaf", self._leaf  # type: ignore[misc]


class _SparseLeaf(_Leaf, nn.Embedding):
    def __init__(self, leaf: torch.Tensor) -> None:
        nn.Embedding.__init__(self, 0, 0, sparse=True)
        self._leaf = leaf


# Gradients of ranks that share memory, averaged where they lie when a backward pass is over.
#
# PyTorch's reducer copies each gradient into a bucket, and what has come of it back: as much again as the exchange itself, where that is
# done
# by memory. Its buckets are for networks, which send one while the pass goes on; a processor that copies does not compute meanwhile.
# Small
# gradients are put together here too, as an exchange costs more than they do.

SMALL = SLOT // 8
"""Bytes of a gradient that is put together with others."""


class NearReducer(Reducer):
    """Averages gradients over the ranks that `memory` connects; every backward pass reaches all leaves on each of them."""

    def __init__(self, leaves: list[torch.Tensor], slot: torch.Tensor | None, memory: SharedMemory) -> None:
        super().__init__(leaves, slot)
        self._memory = memory

    def finish(self) -> None:
        """Average the gradients over the ranks."""
        dense: list[torch.Tensor] = []
        with torch.no_grad():
            for leaf in self._leaves:
                if leaf.grad is None:
                    continue
                if leaf.grad.layout == torch.strided:
                    dense.append(leaf.grad)
                else:  # of `F.embedding(…, sparse=True)`
                    leaf.grad = leaf.grad / self._memory.num_ranks
                    dist.all_reduce(leaf.grad)
            for gradients in _together(dense):
                self._average(gradients)

    def _average(self, gradients: Sequence[torch.Tensor]) -> None:
        first = gradients[0]
        if len(gradients) == 1 and first.is_contiguous():
            self._memory.all_reduce(first, factor=1.0 / self._memory.num_ranks)
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self._memory.all_reduce(flat, factor=1.0 / self._memory.num_ranks)
        for gradient, values in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(values.view(gradient.shape))


def _together(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield gradients that go in one exchange: small ones of a type up to the size of a slot, in their order, and others by themselves."""
    waiting: dict[torch.dtype, list[torch.Tensor]] = {}
    for gradient in gradients:
        if gradient.nbytes > SMALL:
            yield [gradient]
            continue
        group = waiting.setdefault(gradient.dtype, [])
        if sum(other.nbytes for other in group) + gradient.nbytes > SLOT:
            yield group
            group = waiting[gradient.dtype] = []
        group.append(gradient)
    yield from waiting.values()


def reducer_for(leaves: list[torch.Tensor], slot: torch.Tensor | None, *, sparse: Container[int], complete: bool) -> Reducer:
    """Return a new reducer of `leaves`, PyTorch's own unless the ranks share memory. A collective.

    Parameters
    ----------
    leaves, slot, sparse
        As in :class:`.BucketReducer`.
    complete : bool
        Whether this rank's backward pass reaches all of them.
    """
    reached, memory = all_reached(complete), near()
    plain = all(leaf.device.type == "cpu" and leaf.layout == torch.strided and id(leaf) not in sparse for leaf in leaves)
    if reached and plain and memory is not None:
        return NearReducer(leaves, slot, memory)
    return BucketReducer(leaves, slot, sparse=sparse, may_lack_leaves=not reached)

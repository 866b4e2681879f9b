"""Collectives as autograd functions with the exact adjoint, as in ``torch.distributed.nn.functional``.

The gradient of a rank's part is taken from the sum of the ranks' gradients. `backward.gradient_sync` scales at the root and averages over
ranks at the leaves. A loss computed from full values, from parts, or from both therefore has the gradient of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ..comm.batch_ranks import rank_of
from ..comm.collectives import all_gather, all_reduce
from ..timing import COMMUNICATION, Counted
from .batched import of_batched
from .graph_placement import graph_nodes
from .memory_layout import blank_whole
from .missing_gradients import Like, exchanged_gradient, like_of
from .placement_types import Shard
from .rank0_guard import all_ranks_come


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        total = all_sum(part)
        ctx.like = like_of(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        return _total_gradient(grad, ctx.like)  # an autograd function again, so that double backward is right

    @staticmethod
    def jvp(_ctx: Any, tangent: torch.Tensor) -> Any:
        return of_batched(_Sum, tangent)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, placement: Shard, sizes: tuple[int, ...]) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.placement, ctx.sizes = placement, sizes
        whole = _all_parts(part, placement, sizes)
        ctx.like = like_of(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        placement: Shard = ctx.placement
        whole = _total_gradient(grad, ctx.like)
        if whole is None:
            return None, None, None
        part = whole.narrow(placement.dim, placement.loaded.start, placement.loaded.stop - placement.loaded.start)
        return (part if placement.counts else nothing_of(part)), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> Any:
        return _Gather.apply(tangent, ctx.placement, ctx.sizes)  # type: ignore[no-untyped-call]


def _total_gradient(grad: torch.Tensor | None, like: Like) -> torch.Tensor | None:
    return exchanged_gradient(grad, like, partial(of_batched, _Sum))


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return torch.zeros_like(part)

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor | None) -> Any:
        return None if grad is None else of_batched(_Nothing, grad)

    @staticmethod
    def jvp(_ctx: Any, tangent: torch.Tensor) -> Any:
        return of_batched(_Nothing, tangent)


def sum_over_ranks(part: torch.Tensor) -> torch.Tensor:
    """All-reduce `part` (sum) and return the result, in its shape. A collective; the backward pass sums the gradients as well."""
    return of_batched(_Sum, part)


def gather_shards(part: torch.Tensor, placement: Shard, sizes: Sequence[int]) -> torch.Tensor:
    """All-gather the ranks' shards ``(b, …)`` along their dim to ``(B, …)``; `sizes` are their lengths in rank order. A collective."""
    return _Gather.apply(part, placement, tuple(sizes))  # type: ignore[no-untyped-call, no-any-return]


def nothing_of(part: torch.Tensor) -> torch.Tensor:
    """Return zeros shaped as `part`, also where it is NaN, and keep its graph, so that the backward passes of all ranks match."""
    return of_batched(_Nothing, part)


def was_exchanged(roots: Sequence[torch.Tensor]) -> bool:
    """Return whether the graph of `roots` has a collective of this module."""
    return any(isinstance(node, _EXCHANGES) for node in graph_nodes(roots))


_EXCHANGES = (_Sum._backward_cls, _Gather._backward_cls)


def weigh(part: torch.Tensor, weight: float) -> torch.Tensor:
    """Return ``part * weight``; zeros for weight 0, also where the part of a rank without samples is NaN."""
    return part * weight if weight else nothing_of(part)


def all_sum(part: torch.Tensor) -> torch.Tensor:
    """All-reduce `part` (sum; for bool: any) and return the result without a graph. A collective."""
    all_ranks_come()
    is_bool = part.dtype == torch.bool
    result = (part.long() if is_bool else part).detach().clone().contiguous()
    with Counted(COMMUNICATION):
        all_reduce(result)
    return result > 0 if is_bool else result


def _all_parts(part: torch.Tensor, placement: Shard, sizes: Sequence[int]) -> torch.Tensor:
    all_ranks_come()
    moved = part.detach().movedim(placement.dim, 0)
    rank = rank_of(len(sizes))
    own = moved[: sizes[rank]].contiguous()
    # `all_gather` needs tensors of one size: pad smaller shards and cut the padding off afterwards.
    most = max(sizes)
    if sizes[rank] < most:
        own = torch.cat([own, own.new_zeros((most - sizes[rank], *own.shape[1:]))])
    is_bool = own.dtype == torch.bool
    if is_bool:
        own = own.to(torch.uint8)
    parts = [torch.empty_like(own) for _ in sizes]
    with Counted(COMMUNICATION):
        all_gather(parts, own)
    whole = torch.cat([p[:size] for p, size in zip(parts, sizes, strict=True)])
    if is_bool:
        whole = whole.bool()
    made = blank_whole(part, placement)
    if not placement.dim and made.is_contiguous():
        return whole
    return made.copy_(whole.movedim(0, placement.dim))  # not a view, as the cell may write into it

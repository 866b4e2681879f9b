"""The collectives behind a value that is read: a sum over ranks, or all parts put together.

Both are differentiable, with the true adjoint: the gradient with respect to a rank's part is taken from the sum of the ranks'
gradients. `gradients` averages over ranks at the leaves and scales at the root, so a loss that was computed from whole values, from
parts, or from both has the gradient that one process would get.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ...errors import UsageError
from ...serialization.item_restore import bytes_of
from ..comm.batch_ranks import num_batch_ranks, rank_of
from ..comm.collectives import all_gather, all_gather_object, all_reduce, broadcast, scatter_object
from ..timing import COMMUNICATION, Counted
from .batched import of_batched
from .deferred import DeferredReduction, later_of
from .graph_placement import graph_nodes
from .memory_layout import blank_whole
from .missing_gradients import Like, exchanged_gradient, like_of
from .pending_checks import settle
from .placement_types import GlobalTensor, Partial, Shard, is_followed, to_local
from .rank0_guard import all_ranks_come
from .versions import version_of


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        total = _all_sum(part)
        ctx.like = like_of(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        return _total_gradient(grad, ctx.like)  # by itself, so that a gradient of the gradient is right too

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


def nothing_of(part: torch.Tensor) -> torch.Tensor:
    """Return zeros in the shape of `part`, whatever its values, that are connected to its graph: each rank walks the same one."""
    return of_batched(_Nothing, part)


def was_exchanged(roots: Sequence[torch.Tensor]) -> bool:
    """Return whether a value that was exchanged between ranks is in the graph of `roots`."""
    return any(isinstance(node, _EXCHANGES) for node in graph_nodes(roots))


_EXCHANGES = (_Sum._backward_cls, _Gather._backward_cls)


_OF_ROWS = "The cell derives by gradients themselves (`p.grad`), of which each engine has rows on this mesh. Take `--strategy auto`."


class Exchange:
    """Turns global tensors into whole ones, the same on every rank."""

    def full_tensor(self, tensor: GlobalTensor) -> torch.Tensor:
        """Return the value of `tensor` as a plain tensor. A collective: every rank calls it at the same place.

        A shard ``(b, …)`` is all-gathered to ``(B, …)`` along its dim; partial values are all-reduced in their shape.
        """
        settle()
        later = later_of(tensor)
        if later is not None:
            return later.resolve(_all_sum)
        placement = tensor.placement
        part = to_local(tensor)
        if isinstance(placement, Partial):
            weighted = part if placement.weight is None else weigh(part, placement.weight)
            result = of_batched(_Sum, weighted)
        else:
            sizes = tuple(size * placement.unit for size in placement.share.sizes)
            if is_followed(part) and len(sizes) != num_batch_ranks():
                raise UsageError(_OF_ROWS)
            result = _Gather.apply(part, placement, sizes)  # type: ignore[no-untyped-call]
        assert isinstance(result, torch.Tensor)
        return result

    def full_in_transform(self, tensor: GlobalTensor) -> torch.Tensor:
        """Return the value of `tensor`, which is batched by a transform of functions, as a sum of what the ranks have. A collective."""
        settle()
        placement, part = tensor.placement, to_local(tensor)
        if isinstance(placement, Partial):
            return of_batched(_Sum, part if placement.weight is None else weigh(part, placement.weight))
        if not placement.counts:
            part = nothing_of(part)
        own = placement.loaded
        behind = [0, 0] * (part.dim() - 1 - placement.dim)
        return of_batched(_Sum, torch.nn.functional.pad(part, [*behind, own.start, placement.total - own.stop]))

    @staticmethod
    def resolve(later: DeferredReduction) -> None:
        """Exchange what a value waits for. A collective."""
        settle()
        later.resolve(_all_sum)

    @staticmethod
    def cache_value(tensor: GlobalTensor, value: torch.Tensor) -> None:
        """Take `value`, with as many entries, as that of `tensor`, which has come to all ranks another way, until the tensor is changed."""
        with torch._C.DisableTorchFunctionSubclass():
            if not tensor.is_inference():  # nobody could tell when it is changed
                tensor._state.value = version_of(tensor), value.view(tensor.shape)

    @staticmethod
    def known(tensor: GlobalTensor) -> torch.Tensor | None:
        """Return the value of `tensor` without its graph, if it is known; ``None``: a collective has to be asked."""
        if tensor._state.value is None:  # tensors of inference mode have no version
            return None
        version, value = tensor._state.value
        return value if version == version_of(tensor) else None

    def value(self, tensor: GlobalTensor) -> torch.Tensor:
        """Return the value of `tensor` without its graph. A collective, unless it is known."""
        settle()
        known = self.known(tensor)
        return self.full_tensor(tensor).detach() if known is None else known

    @staticmethod
    def sum(part: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `part`, in its shape. A collective, and differentiable: the gradient is summed as well."""
        return of_batched(_Sum, part)

    @staticmethod
    def objects(value: Any) -> list[Any]:
        """Return every rank's `value`, in rank order."""
        all_ranks_come()
        with Counted(COMMUNICATION):
            return all_gather_object(value)

    @staticmethod
    def is_same(tensor: torch.Tensor) -> bool:
        """Return whether `tensor`, of one shape everywhere, has the same bits on all ranks."""
        all_ranks_come()
        own = bytes_of(tensor.detach())
        parts = [torch.empty_like(own) for _ in range(num_batch_ranks())]
        with Counted(COMMUNICATION):
            all_gather(parts, own)
        return all(torch.equal(part, own) for part in parts)

    @staticmethod
    def scattered(values: list[Any] | None, source: int) -> Any:
        """Return this rank's of the `values` that rank `source` has, one for each rank."""
        return scatter_object(values, source)

    @staticmethod
    def broadcast(tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Begin to give all ranks rank 0's `tensors`; return what ends it. Graphs that hold them do not notice."""
        pending = []
        for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
            alike = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
            pending.append((broadcast(flat), flat, alike))

        def end() -> None:
            for end_one, flat, alike in pending:
                end_one()
                for tensor, values in zip(alike, flat.split([tensor.numel() for tensor in alike]), strict=True):
                    tensor.data.copy_(values.view_as(tensor))

        return end

    @staticmethod
    def total(number: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' numbers; no gradient."""
        return _all_sum(number)


def weigh(part: torch.Tensor, weight: float) -> torch.Tensor:
    """Return ``part * weight``; zeros where the weight is 0, whatever the part of a rank without samples is."""
    return part * weight if weight else nothing_of(part)


def _all_sum(part: torch.Tensor) -> torch.Tensor:
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
    # Collectives want parts of one size; the rest of a smaller one is cut off afterwards.
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
    return made.copy_(whole.movedim(0, placement.dim))  # what the cell may write into must not be a view

"""Collectives of tensor parallelism, as autograd functions with gradients of any order.

A value is *replicated* if all ranks have the same, and *local* if each has its own. Each function is the gradient of another one:
`split` (the rank's columns of a replicated value) and `gather` (the columns of all ranks), `copy` (a replicated value that local ones
are computed from) and `reduce` (the sum of local values). The latter are Megatron-LM's *f* and *g* (https://arxiv.org/abs/1909.08053,
section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from ....errors import UsageError
from ...comm.shared_memory import SharedMemory
from ...tensor.autograd_function import current_apply
from ...tensor.batched import is_batched
from ...tensor.missing_gradients import exchanged_gradient, like_of
from ...timing import COMMUNICATION, Counted

apply = current_apply()  # not what fetches the parameters that a user's function is given


class Columns:
    """Which indices along a dim each rank computes.

    Parameters
    ----------
    memory : SharedMemory
        Connects the ranks.
    sizes : sequence of int
        Sizes of consecutive pieces, which belong to the ranks in turn, again and again.
    """

    def __init__(self, memory: SharedMemory, sizes: Sequence[int]) -> None:
        self._memory, self._sizes, self.rank = memory, tuple(sizes), memory.rank
        self._num_ranks = memory.num_ranks
        starts = [0, *accumulate(self._sizes)]
        self.total_size = starts[-1]
        self.pieces = [(starts[piece], self._sizes[piece]) for piece in range(self.rank, len(self._sizes), self._num_ranks)]

    def like(self, *, times: int = 1, of: int = 1) -> Columns:
        """Return the columns of a dim `times` as long, the pieces repeated; `of` indices count as one."""
        return Columns(self._memory, [size // of for size in self._sizes] * times)

    def sizes_of(self, rank: int) -> tuple[int, ...]:
        """Return the sizes of the pieces of a rank."""
        return self._sizes[rank :: self._num_ranks]

    def own(self, full: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this rank's columns of a replicated value, in new memory."""
        parts = [full.narrow(dim, *piece) for piece in self.pieces]
        return torch.cat(parts, dim) if len(parts) > 1 else parts[0].clone(memory_format=torch.contiguous_format)

    def all_of(self, local: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the columns of all ranks. Collective."""
        _refuse_many_starts(local)
        dim %= local.dim()
        sizes = [self.sizes_of(rank) for rank in range(self._num_ranks)]
        shapes = [(*local.shape[:dim], sum(of_rank), *local.shape[dim + 1 :]) for of_rank in sizes]
        parts = [local.contiguous() if rank == self.rank else local.new_empty(shape) for rank, shape in enumerate(shapes)]
        if local.numel():
            with Counted(COMMUNICATION), torch._C.DisableTorchFunction():
                self._memory.exchange([[part.view(-1).view(torch.uint8)] for part in parts])
        if len(self.pieces) == 1:
            return torch.cat(parts, dim)
        pieces = [part.split(of_rank, dim) for part, of_rank in zip(parts, sizes, strict=True)]
        return torch.cat([piece for of_group in zip(*pieces, strict=True) for piece in of_group], dim)

    def total(self, local: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks, in their order. Collective."""
        _refuse_many_starts(local)
        result = local.clone(memory_format=torch.contiguous_format)
        if result.numel():
            with Counted(COMMUNICATION):
                self._memory.all_reduce(result)
        return result


def _refuse_many_starts(local: torch.Tensor) -> None:
    if is_batched(local):
        raise UsageError(
            "The cell computes batched gradients (`is_grads_batched=True`, or `vmap` around `torch.autograd.grad`), "
            "through a layer that `--strategy tensor` shards. Call `torch.autograd.grad` once per vector, or use `--strategy zero3`."
        )


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, full: torch.Tensor, columns: Columns, dim: int) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.columns, ctx.dim = columns, dim
        own = columns.own(full, dim)
        ctx.like = like_of(own)
        return own

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        return exchanged_gradient(gradient, ctx.like, lambda own: apply(_Gather, own, ctx.columns, ctx.dim)), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, columns: Columns, dim: int) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.columns, ctx.dim = columns, dim
        return columns.all_of(local, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else apply(_Split, gradient, ctx.columns, ctx.dim), None, None


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, full: torch.Tensor, columns: Columns, dtype: torch.dtype) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.columns, ctx.dtype = columns, full.dtype
        local = full.view_as(full) if full.dtype is dtype else full.to(dtype)
        ctx.like = like_of(local)
        return local

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        return exchanged_gradient(gradient, ctx.like, lambda own: apply(_Reduce, own, ctx.columns).to(ctx.dtype)), None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, columns: Columns) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.columns = columns
        return columns.total(local)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else apply(_Copy, gradient, ctx.columns, gradient.dtype), None


def split(full: torch.Tensor, columns: Columns, dim: int = -1) -> torch.Tensor:
    """Return the rank's columns of a replicated value."""
    result: torch.Tensor = apply(_Split, full, columns, dim)
    return result


def gather(local: torch.Tensor, columns: Columns, dim: int = -1) -> torch.Tensor:
    """Return the columns of all ranks. Collective."""
    result: torch.Tensor = apply(_Gather, local, columns, dim)
    return result


def copy(full: torch.Tensor, columns: Columns, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a replicated value for computing local ones; its gradient is all-reduced, in its dtype."""
    dtype = dtype or full.dtype
    result: torch.Tensor = apply(_Copy, full, columns, dtype) if full.requires_grad and torch.is_grad_enabled() else full.to(dtype)
    return result


def reduce(local: torch.Tensor, columns: Columns) -> torch.Tensor:
    """Return the sum over the ranks. Collective."""
    result: torch.Tensor = apply(_Reduce, local, columns)
    return result

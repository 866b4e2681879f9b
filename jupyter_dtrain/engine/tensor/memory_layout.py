"""How what spans the ranks would lie in the memory of one process: random draws follow that order, and cells read strides.

A rank's part ``(b, …)`` lies in memory as the tensor ``(B, …)`` would in one process, but for the number of samples. So the order of its
dims tells that of the whole, and its strides tell the whole's.
"""

from __future__ import annotations

from typing import Any

import torch

from ..comm.batch_ranks import memory_of
from ..comm.collectives import all_gather_object
from ..timing import COMMUNICATION, Counted
from .placement_types import Shard


def blank_like(part: torch.Tensor, dim: int, total: int, *, with_gaps: bool = False, device: torch.device | None = None) -> torch.Tensor:
    """Return a tensor for all of a batch that is laid out in memory as a rank's part is.

    Parameters
    ----------
    part : torch.Tensor, shape (…, b, …)
    dim : int
        Along which dim it is a part.
    total : int
        B, of how many samples the batch is.
    with_gaps : bool
        Leave the gaps that the whole would have between its numbers: PyTorch draws normal numbers in another way where there are none.
    device : torch.device, optional
        Where to; by default that of `part`.

    Returns
    -------
    torch.Tensor, shape (…, B, …)
        Its values are any.
    """
    where: dict[str, Any] = {"dtype": part.dtype, "device": device or part.device}
    if with_gaps:
        whole = described(part, dim, total)
        if not whole.is_contiguous() and torch.empty_like(whole).stride() != whole.stride():
            return torch.empty_strided(whole.shape, whole.stride(), **where)
    strides = part.stride()
    if 0 in strides:  # expanded: what is made after it is not
        strides = torch.empty_like(part, device="meta").stride()
    shape = [total if number == dim else size for number, size in enumerate(part.shape)]
    made, step = [0] * part.dim(), 1
    for number in sorted(range(part.dim()), key=lambda number: (strides[number], part.shape[number] != 1, -number)):
        made[number], step = step, step * max(1, shape[number])
    return torch.empty_strided(shape, made, **where)  # no view: what autograd's functions return must be none


def compact(part: torch.Tensor) -> torch.Tensor:
    """Return a copy of `part`, in its shape and with its dims in the same order in memory, but without gaps."""
    return blank_like(part, 0, part.shape[0]).copy_(part) if part.dim() else part.clone()


def blank_whole(part: torch.Tensor, placement: Shard, *, with_gaps: bool = False) -> torch.Tensor:
    """Return what :func:`blank_like` does, of one layout on all ranks. A collective where some of them have a single sample.

    Parameters
    ----------
    part : torch.Tensor, shape (…, b, …)
    placement : Shard
    with_gaps : bool
        As :func:`blank_like`.
    """
    sizes, like = placement.share.sizes, part
    if part.dim() > 1 and sizes and min(sizes) < 2 <= max(sizes):  # along a dim of size 1 a stride may be anything, and says nothing
        with Counted(COMMUNICATION):
            of_ranks = all_gather_object((tuple(part.shape), part.stride()), memory_of(len(sizes)))  # rows of parameters are on all ranks
            shape, strides = of_ranks[sizes.index(max(sizes))]
        like = torch.empty_strided(shape, strides, dtype=part.dtype, device="meta")
    return blank_like(like, placement.dim, placement.total, with_gaps=with_gaps, device=part.device)


def described(part: torch.Tensor, dim: int, total: int) -> torch.Tensor:
    """Return a tensor without memory that has the shape and the strides of the whole of which `part` is a part.

    Dims that step over all samples step over B of them and not over b: those of ``x.T.contiguous()`` are ``(B, 1)``.

    Parameters
    ----------
    part : torch.Tensor, shape (…, b, …)
    dim, total : int
        As :func:`blank_like`.
    """
    shape = [total if number == dim else size for number, size in enumerate(part.shape)]
    size, step = part.shape[dim], part.stride(dim)
    over = size * step  # as far as a rank's samples reach
    strides = [
        stride // over * (total * step) if number != dim and over and stride >= over and not stride % over else stride
        for number, stride in enumerate(part.stride())
    ]
    return torch.empty_strided(shape, strides, dtype=part.dtype, device="meta")

"""Memory layout (strides) that a global tensor would have in one process: random draws follow that order, and cells read strides.

A rank's shard ``(b, …)`` has the layout that the full tensor ``(B, …)`` has in one process, but for the number of samples. The strides of
the shard therefore give the order of the full tensor's dims and its strides.
"""

from __future__ import annotations

from typing import Any

import torch

from ..comm.batch_ranks import memory_of
from ..comm.collectives import all_gather_object
from ..timing import COMMUNICATION, Counted
from .placement_types import Shard


def blank_like(part: torch.Tensor, dim: int, total: int, *, with_gaps: bool = False, device: torch.device | None = None) -> torch.Tensor:
    """Return an uninitialized tensor of the batch's shape whose dims have the same order in memory as those of `part`.

    Parameters
    ----------
    part : torch.Tensor, shape (…, b, …)
    dim : int
        The sharded dim.
    total : int
        B, the size of that dim in the full tensor.
    with_gaps : bool
        Keep the gaps between elements that the full tensor would have: PyTorch draws normal numbers differently without gaps.
    device : torch.device, optional
        By default that of `part`.

    Returns
    -------
    torch.Tensor, shape (…, B, …)
    """
    where: dict[str, Any] = {"dtype": part.dtype, "device": device or part.device}
    if with_gaps:
        whole = described(part, dim, total)
        if not whole.is_contiguous() and torch.empty_like(whole).stride() != whole.stride():
            return torch.empty_strided(whole.shape, whole.stride(), **where)
    strides = part.stride()
    if 0 in strides:  # expanded: a tensor made like it is not
        strides = torch.empty_like(part, device="meta").stride()
    shape = [total if number == dim else size for number, size in enumerate(part.shape)]
    made, step = [0] * part.dim(), 1
    for number in sorted(range(part.dim()), key=lambda number: (strides[number], part.shape[number] != 1, -number)):
        made[number], step = step, step * max(1, shape[number])
    return torch.empty_strided(shape, made, **where)  # no permuted view: an autograd function must not return one


def ones_in(blank: torch.Tensor) -> torch.Tensor:
    """Return ones of the shape, the type and the device of `blank`, in its memory unless that repeats entries."""
    if 0 in blank.stride():
        return torch.ones((), dtype=blank.dtype, device=blank.device).expand(blank.shape)
    return blank.fill_(1.0)


def compact(part: torch.Tensor) -> torch.Tensor:
    """Return a copy of `part`, in its shape and with its dims in the same order in memory, but without gaps."""
    return blank_like(part, 0, part.shape[0]).copy_(part) if part.dim() else part.clone()


def blank_whole(part: torch.Tensor, placement: Shard, *, with_gaps: bool = False) -> torch.Tensor:
    """Return a tensor as :func:`blank_like`, with the same layout on all ranks. A collective if some ranks have fewer than two samples.

    Parameters
    ----------
    part : torch.Tensor, shape (…, b, …)
    placement : Shard
    with_gaps : bool
        As :func:`blank_like`.
    """
    sizes, like = placement.share.sizes, part
    if part.dim() > 1 and sizes and min(sizes) < 2 <= max(sizes):  # the stride of a dim of size 1 is arbitrary
        with Counted(COMMUNICATION):
            of_ranks = all_gather_object((tuple(part.shape), part.stride()), memory_of(len(sizes)))  # parameters: all ranks
            shape, strides = of_ranks[sizes.index(max(sizes))]
        like = torch.empty_strided(shape, strides, dtype=part.dtype, device="meta")
    return blank_like(like, placement.dim, placement.total, with_gaps=with_gaps, device=part.device)


def described(part: torch.Tensor, dim: int, total: int) -> torch.Tensor:
    """Return a meta tensor with the shape and strides of the full tensor of which `part` is a shard.

    Strides that step over all samples are scaled from b to B samples: those of ``x.T.contiguous()`` are ``(B, 1)``.

    Parameters
    ----------
    part : torch.Tensor, shape (…, b, …)
    dim, total : int
        As :func:`blank_like`.
    """
    shape = [total if number == dim else size for number, size in enumerate(part.shape)]
    size, step = part.shape[dim], part.stride(dim)
    over = size * step  # elements that a rank's samples span
    strides = [
        stride // over * (total * step) if number != dim and over and stride >= over and not stride % over else stride
        for number, stride in enumerate(part.stride())
    ]
    return torch.empty_strided(shape, strides, dtype=part.dtype, device="meta")

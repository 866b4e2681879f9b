"""Projections of the gradients of a call, few numbers that ranks can sum: on two directions per parameter, for one of the results.

The directions are the same on all ranks and draw no random numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import nn

from ..module_tree import parameters_in
from ..tensor.hooks_aside import hooks_set_aside
from ..tensor.placement_types import Placement, Shard
from ..tensor.recompute import BackwardPasses

_grad = torch.autograd.grad
_CLOSE = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.float32: 3e-3, torch.complex64: 3e-3}
_CLOSE_ELSEWHERE = 5e-2

Projections = list[torch.Tensor]
"""Numbers per parameter: the gradient along two directions, and its norm."""


def projections(
    module: nn.Module,
    results: Sequence[torch.Tensor],
    placements: Sequence[Placement | None],
    *,
    scale: float,
    passes: BackwardPasses,
) -> Projections | None:
    """Return the projected gradients of the parameters of `module`; the autograd graph is retained.

    Parameters
    ----------
    results : sequence of torch.Tensor
        The results of its call, or the rank's parts of these.
    placements : sequence of Placement or None
        Placement of each result; ``None``: it is the full one.
    scale : float
        Factor by which gradients of shards are larger, as they are averaged over so many ranks; 1 for one rank alone.
    passes : BackwardPasses
        Notified of the pass.

    Returns
    -------
    list of torch.Tensor or None
        ``None`` if they cannot be computed: graphs with checkpoints or compiled code allow one pass only.
    """
    if has_compiled():  # each pass may pick another graph, and checkpointing wants the same
        return None
    parameters = [p for p in parameters_in(module) if p.requires_grad and p.is_leaf and p.layout == torch.strided]
    roots, starts = [], []
    for number, (result, placement) in enumerate(zip(results, placements, strict=True)):
        if result.grad_fn is None or not result.is_floating_point():
            continue
        if placement is not None and not isinstance(placement, Shard):
            return None
        roots.append(result)
        starts.append(_start(result, placement, number) * (1.0 if placement is None else scale))
    if not roots or not parameters or not torch.is_grad_enabled():
        return None
    found: list[torch.Tensor | None] = []

    def run() -> None:
        found.extend(_grad(roots, parameters, starts, retain_graph=True, allow_unused=True))

    with suppress(RuntimeError), hooks_set_aside(parameters), torch._C.DisableTorchFunctionSubclass():
        passes.run(run)
    if not found:
        return None
    return [_along_directions(gradient, scale) for gradient in found]


def has_compiled() -> bool:
    """Return whether anything has been compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"])


def _start(result: torch.Tensor, placement: Shard | None, number: int) -> torch.Tensor:
    if placement is None:
        return _direction(result.shape, number, result)
    if not placement.counts:
        return torch.zeros_like(result)
    shape = torch.Size(placement.total if dim == placement.dim else size for dim, size in enumerate(result.shape))
    own = placement.loaded
    return _direction(shape, number, result).narrow(placement.dim, own.start, own.stop - own.start)


def _along_directions(gradient: torch.Tensor | None, divisor: float) -> torch.Tensor:
    if gradient is None or gradient.layout != torch.strided or not gradient.numel():
        return torch.zeros(3, dtype=torch.float64)
    gradient = gradient.detach()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient)
    if gradient.itemsize < 4:  # of sums in 16 bits too little is left
        gradient = gradient.float()
    # A direction is an outer product: one of each number by itself would take several times the gradient's memory, and longer than a step.
    table = gradient.reshape(len(gradient) if gradient.dim() else 1, -1)
    rows, columns = (torch.Size([size]) for size in table.shape)
    sums = [_direction(rows, number, table) @ (table @ _direction(columns, number + 2, table)) for number in (1, 2)]
    return torch.stack([*sums, gradient.norm()]).double().cpu() / divisor


def _direction(shape: torch.Size, number: int, like: torch.Tensor) -> torch.Tensor:
    values = torch.arange(shape.numel(), dtype=torch.float64, device=like.device)
    return values.mul_(0.7548776662466927 * (number + 1)).add_(0.3 * number).cos_().view(shape).to(like.dtype)


def differ(whole: Projections, of_ranks: Sequence[Projections], dtype: torch.dtype) -> bool:
    """Return whether the sums of the ranks' gradients differ from those of the full batch, `whole`."""
    largest = max((float(sums[2]) for sums in whole if bool(torch.isfinite(sums).all())), default=0.0)
    close = _CLOSE.get(dtype, _CLOSE_ELSEWHERE) * largest
    for number, expected in enumerate(whole):
        found = torch.stack([of_rank[number][:2] for of_rank in of_ranks]).sum(0)
        if bool(torch.isfinite(expected).all()) and not bool(((found - expected[:2]).abs() <= close).all()):
            return True
    return False

"""An optimizer step on the parameters that this rank owns, and the broadcast of these to the other ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.optim import Optimizer

from ...comm.collectives import exchange
from ...tensor.rank0_guard import all_ranks_come
from .gather import way_of
from .partition import Quiet, Step


def step_own(
    original: Step, optimizer: Optimizer, owners: Mapping[int, int], *, rank: int, world_size: int, quiet: Quiet
) -> list[list[torch.Tensor]]:
    """Let `original` update the parameters that `rank` owns by `owners` (by ``id``); return the parameters that each rank updates."""
    groups = optimizer.param_groups
    wholes = [group["params"] for group in groups]
    updated: list[dict[int, torch.Tensor]] = [{} for _ in range(world_size)]
    for parameter in (parameter for params in wholes for parameter in params):
        if parameter.grad is not None:
            updated[owners[id(parameter)]][id(parameter)] = parameter
    all_ranks_come()
    try:
        for group, params in zip(groups, wholes, strict=True):
            group["params"] = [parameter for parameter in params if owners[id(parameter)] == rank]
        optimizer.param_groups = [group for group in groups if group["params"]]
        if optimizer.param_groups:
            with quiet.on():
                original(optimizer)
    finally:
        for group, params in zip(groups, wholes, strict=True):
            group["params"] = params
        optimizer.param_groups = groups
    return [list(of_rank.values()) for of_rank in updated]


def send(updated: list[list[torch.Tensor]], *, rank: int) -> None:
    """Send the parameters that each rank has updated to all ranks."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        # Of what has its numbers in another order a copy goes. A view counts as its base: graphs notice that it has changed.
        flat = [[parameter.detach().reshape(-1).view(torch.uint8) for parameter in of_rank] for of_rank in updated]
        exchange(flat, device=way_of(parameter for of_rank in updated for parameter in of_rank))
        for owner, (of_rank, found) in enumerate(zip(updated, flat, strict=True)):
            for parameter, values in zip(of_rank, found, strict=True):
                if owner != rank and not parameter.is_contiguous():
                    parameter.copy_(values.view(parameter.dtype).view(parameter.shape))

"""An optimizer step on the parameters that this rank owns, and the broadcast of these to the other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.optim import Optimizer

from ...comm.collectives import exchange
from ...tensor.agreed import failures_of, first_of, raise_if_any
from ...tensor.caught import may_be_caught
from ...tensor.rank0_guard import all_ranks_come
from .gather import way_of
from .partition import Quiet, Step


class StepErrors:
    """Errors in steps that the cell catches. It cannot go on after one, as ranks have updated other parameters before it.

    One process has then updated all parameters up to the one at which it fails.
    """

    def __init__(self) -> None:
        self._has_failed = False

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Raise an error of any rank in the ``with`` block on all ranks, where the cell would catch it. Collective there."""
        error: Exception | None = None
        is_caught = may_be_caught()
        try:
            yield
        except Exception as raised:
            if not is_caught:
                raise
            error = raised
        if is_caught and first_of(failures := failures_of(error)) is not None:
            self._has_failed = True
            raise_if_any(failures, error)

    def check(self) -> None:
        """Raise an error if there was one.

        Raises
        ------
        RuntimeError
        """
        if self._has_failed:
            raise RuntimeError(
                "`--strategy zero1` cannot go on after an error in a step of an optimizer, which the cell has caught: each engine had "
                "updated other parameters before it. Use `--strategy auto`, or `--strategy zero3`."
            )


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

"""The seam to how the gradients of a backward pass go from rank to rank, for reducers that average whole ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from ..comm.batch_ranks import alike_memory, batch_memory
from ..comm.shared_memory import SLOT

SMALL = SLOT // 8
"""Bytes of a gradient that is put together with others."""
BucketHook = Callable[[Any, dist.GradBucket], Future[torch.Tensor]]  # type: ignore[name-defined]  # not in torch's own list of exports
"""As ``DistributedDataParallel.register_comm_hook`` takes it."""


class GradientExchange:
    """Gradients go as they are."""

    def begins(self, leaves: Sequence[torch.Tensor]) -> None:
        """Be told of a pass to `leaves`, which may have gradients that it adds to."""

    def average(self, gradients: Sequence[torch.Tensor], value: torch.Tensor | None) -> None:
        """Put the ranks' mean of each of `gradients`, dense ones, in its place. A collective.

        Parameters
        ----------
        gradients : sequence of Tensor
        value : Tensor, optional
            The loss's, of one number, which is averaged too: the cell reads it.
        """
        average(gradients if value is None else [*gradients, value])

    def bucket_hook(self, slot: torch.Tensor | None) -> BucketHook | None:  # noqa: ARG002  # for others
        """Return what averages the buckets of PyTorch's reducer, ``None``: itself. The gradient of `slot` is the loss's value."""
        return None

    def finish(self) -> None:
        """Be told that the cell has ended, without an error."""


def average(gradients: Sequence[torch.Tensor]) -> None:
    """Put the ranks' mean of each of `gradients`, dense ones, in its place; small ones go in one exchange, flat. A collective."""
    for group in together(gradients):
        _average(group)


def flattened(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the numbers of `gradients` in one row: the gradient itself, if it is one that is contiguous."""
    first = gradients[0]
    return first if len(gradients) == 1 and first.is_contiguous() else torch.cat([gradient.reshape(-1) for gradient in gradients])


def put_back(flat: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
    """Write the numbers of `flat` into `gradients`."""
    if flat is gradients[0]:
        return
    for gradient, values in zip(gradients, flat.view(-1).split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(values.view(gradient.shape))


def _average(gradients: Sequence[torch.Tensor]) -> None:
    flat, memory = flattened(gradients), batch_memory()
    if memory is not None and flat.device.type == "cpu":
        alike = alike_memory()
        if alike is not None:  # which have come to the same numbers, but perhaps for their last digits
            alike.all_reduce(flat, factor=1.0 / alike.num_ranks)
        memory.all_reduce(flat, factor=1.0 / memory.num_ranks)
    else:
        flat.mul_(1.0 / dist.get_world_size())
        dist.all_reduce(flat)
    put_back(flat, gradients)


def together(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield gradients that go in one exchange: small ones of a type up to the size of a slot, in their order, and others by themselves."""
    waiting: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for gradient in gradients:
        if gradient.nbytes > SMALL:
            yield [gradient]
            continue
        group = waiting.setdefault((gradient.dtype, gradient.device), [])
        if sum(other.nbytes for other in group) + gradient.nbytes > SLOT:
            yield group
            group = waiting[gradient.dtype, gradient.device] = []
        group.append(gradient)
    yield from waiting.values()

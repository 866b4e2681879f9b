"""The interface by which reducers average full gradients over the ranks; strategies may replace it, to compress for example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.futures import Future

from ..comm.batch_ranks import alike_memory, batch_memory
from ..comm.shared_memory import SLOT

SMALL = SLOT // 8
"""Gradients of at most this many bytes are flattened together with others."""
BucketHook = Callable[[Any, dist.GradBucket], Future[torch.Tensor]]  # type: ignore[name-defined]  # not in torch's own list of exports
"""The type of hook that ``DistributedDataParallel.register_comm_hook`` takes."""


class GradientExchange:
    """Averages gradients uncompressed. Base class of other exchanges."""

    def begins(self, leaves: Sequence[torch.Tensor]) -> None:
        """Prepare for a pass to `leaves`, which may have gradients already."""

    def average(self, gradients: Sequence[torch.Tensor], value: torch.Tensor | None) -> None:
        """Average the dense `gradients` over the ranks, in place. A collective.

        Parameters
        ----------
        gradients : sequence of Tensor
        value : Tensor, optional
            Value of the loss, a single number, which is averaged too: the cell may read it.
        """
        average(gradients if value is None else [*gradients, value])

    def bucket_hook(self, slot: torch.Tensor | None) -> BucketHook | None:  # noqa: ARG002  # for others
        """Return the comm hook for the buckets of PyTorch's reducer, ``None`` for none. The gradient of `slot` is the loss's value."""
        return None

    def finish(self) -> None:
        """Report what was noticed during the run, when the cell has ended without an error."""


def average(gradients: Sequence[torch.Tensor]) -> None:
    """Average the dense `gradients` over the ranks, in place; small ones are flattened into one all-reduce. A collective."""
    for group in together(gradients):
        _average(group)


def flattened(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return `gradients` flattened into one tensor; a single contiguous gradient is returned itself."""
    first = gradients[0]
    return first if len(gradients) == 1 and first.is_contiguous() else _flatten_dense_tensors(gradients)


def put_back(flat: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
    """Copy the values of `flat` back into `gradients`; the inverse of :func:`flattened`."""
    if flat is gradients[0]:
        return
    torch._foreach_copy_(list(gradients), _unflatten_dense_tensors(flat, gradients))


def _average(gradients: Sequence[torch.Tensor]) -> None:
    flat, memory = flattened(gradients), batch_memory()
    if memory is not None and flat.device.type == "cpu":
        alike = alike_memory()
        if alike is not None:  # ranks that compute the same gradients, but perhaps for the last digits
            alike.all_reduce(flat, factor=1.0 / alike.num_ranks)
        memory.all_reduce(flat, factor=1.0 / memory.num_ranks)
    else:
        flat.mul_(1.0 / dist.get_world_size())
        dist.all_reduce(flat)
    put_back(flat, gradients)


def together(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield groups of gradients for one exchange each: small ones of equal dtype and device up to `SLOT` bytes, large ones alone."""
    waiting: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    filled: dict[tuple[torch.dtype, torch.device], int] = {}
    for gradient in gradients:
        size = gradient.nbytes
        if size > SMALL:
            yield [gradient]
            continue
        kind = gradient.dtype, gradient.device
        if filled.get(kind, SLOT) + size > SLOT:
            if kind in waiting:
                yield waiting[kind]
            waiting[kind], filled[kind] = [], 0
        waiting[kind].append(gradient)
        filled[kind] += size
    yield from waiting.values()

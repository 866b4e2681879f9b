"""The collectives that read a global tensor: an all-reduce of partial values, an all-gather of shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import UsageError
from ...serialization.item_restore import bytes_of
from ..comm.batch_ranks import num_batch_ranks
from ..comm.collectives import all_gather, all_gather_object, broadcast, scatter_object
from ..timing import COMMUNICATION, Counted
from .deferred import DeferredReduction, later_of
from .functional_collectives import all_sum, gather_shards, nothing_of, sum_over_ranks, weigh
from .pending_checks import settle
from .placement_types import GlobalTensor, Partial, is_followed, to_local
from .rank0_guard import all_ranks_come
from .versions import version_of

_OF_ROWS = "The cell differentiates through gradients (`p.grad`), which are sharded on this mesh. Use `--strategy auto`."


class Exchange:
    """Turns global tensors into full tensors, equal on every rank."""

    def full_tensor(self, tensor: GlobalTensor) -> torch.Tensor:
        """Return the full tensor of `tensor`, with its graph. A collective: every rank calls it at the same place.

        A shard ``(b, …)`` is all-gathered along its dim to ``(B, …)``. Partial values are all-reduced in their shape.

        Raises
        ------
        UsageError
            The tensor requires gradients and is sharded over other ranks than batches are.
        """
        settle()
        later = later_of(tensor)
        if later is not None:
            return later.resolve(all_sum)
        placement = tensor.placement
        part = to_local(tensor)
        if isinstance(placement, Partial):
            weighted = part if placement.weight is None else weigh(part, placement.weight)
            result = sum_over_ranks(weighted)
        else:
            sizes = tuple(size * placement.unit for size in placement.share.sizes)
            if is_followed(part) and len(sizes) != num_batch_ranks():
                raise UsageError(_OF_ROWS)
            result = gather_shards(part, placement, sizes)
        assert isinstance(result, torch.Tensor)
        return result

    def full_in_transform(self, tensor: GlobalTensor) -> torch.Tensor:
        """Return the full tensor of `tensor`, which a ``torch.func`` transform has batched. A collective.

        Shards are zero-padded to ``(B, …)`` and all-reduced: unlike a gather, a sum works on batched tensors.
        """
        settle()
        placement, part = tensor.placement, to_local(tensor)
        if isinstance(placement, Partial):
            return sum_over_ranks(part if placement.weight is None else weigh(part, placement.weight))
        if not placement.counts:
            part = nothing_of(part)
        own = placement.loaded
        behind = [0, 0] * (part.dim() - 1 - placement.dim)
        return sum_over_ranks(torch.nn.functional.pad(part, [*behind, own.start, placement.total - own.stop]))

    @staticmethod
    def resolve(later: DeferredReduction) -> None:
        """Compute a deferred value. A collective."""
        settle()
        later.resolve(all_sum)

    @staticmethod
    def cache_value(tensor: GlobalTensor, value: torch.Tensor) -> None:
        """Cache `value`, which all ranks have got by another exchange, as the value of `tensor` until the tensor is written to.

        Parameters
        ----------
        tensor : GlobalTensor
        value : Tensor
            With as many elements as `tensor`.
        """
        with torch._C.DisableTorchFunctionSubclass():
            if not tensor.is_inference():  # inference tensors have no version counter, so writes go unnoticed
                tensor._state.value = version_of(tensor), value.view(tensor.shape)

    @staticmethod
    def known(tensor: GlobalTensor) -> torch.Tensor | None:
        """Return the cached value of `tensor`, without its graph, or ``None``."""
        if tensor._state.value is None:  # checked first, as inference tensors have no version
            return None
        version, value = tensor._state.value
        return value if version == version_of(tensor) else None

    def value(self, tensor: GlobalTensor) -> torch.Tensor:
        """Return the value of `tensor` without its graph. A collective, unless the value is cached."""
        settle()
        known = self.known(tensor)
        return self.full_tensor(tensor).detach() if known is None else known

    @staticmethod
    def sum(part: torch.Tensor) -> torch.Tensor:
        """All-reduce `part` (sum) and return the result. A collective; the backward pass sums the gradients as well."""
        return sum_over_ranks(part)

    @staticmethod
    def objects(value: Any) -> list[Any]:
        """All-gather the picklable `value`; return those of all ranks, in rank order. A collective."""
        all_ranks_come()
        with Counted(COMMUNICATION):
            return all_gather_object(value)

    @staticmethod
    def is_same(tensor: torch.Tensor) -> bool:
        """Return whether `tensor` has the same bits on all ranks. A collective; the shape must be equal on all ranks."""
        all_ranks_come()
        own = bytes_of(tensor.detach())
        parts = [torch.empty_like(own) for _ in range(num_batch_ranks())]
        with Counted(COMMUNICATION):
            all_gather(parts, own)
        return all(torch.equal(part, own) for part in parts)

    @staticmethod
    def scattered(values: list[Any] | None, source: int) -> Any:
        """Scatter the `values` of rank `source`, one per rank; return this rank's. A collective; `values` is ``None`` elsewhere."""
        return scatter_object(values, source)

    @staticmethod
    def broadcast(tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Start to broadcast rank 0's `tensors` in place. A collective.

        Returns
        -------
        callable
            Waits, then writes the values via ``.data``, which bumps no version counter: graphs that have saved the tensors stay valid.
        """
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
        """All-reduce `number` (sum) and return the result without a graph. A collective."""
        return all_sum(number)

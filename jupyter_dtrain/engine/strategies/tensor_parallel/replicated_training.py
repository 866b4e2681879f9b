"""Training in which every rank has all of each batch, and runs the cell as one process would.

Loaders are not sharded, so batches and random numbers are those of one process. The only global tensors that the cell sees are gradients
of sharded parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ....errors import UsageError
from ...comm.collectives import all_gather
from ...comm.shared_memory import SharedMemory
from ...data.dataloader import ShardedLoaders
from ...data.iterator_state import IteratorLog
from ...task import Semantics
from ...telemetry.observer import Observer
from ...tensor.batch_shard import BatchShard, BatchSharding
from ...tensor.placement_types import GlobalTensor
from ...tensor.rank0_guard import all_ranks_come
from ...timing import COMMUNICATION, Counted
from ..data_parallel.training import DataParallelTraining

_NUM_SAMPLES = 1024
"""Numbers of each tensor that ranks compare."""
_CLOSE = 1e-4
"""Relative difference of what ranks have computed alike: kernels may round in another way where memory is aligned in another way."""


class ReplicatedTraining(DataParallelTraining):
    """As :class:`.DataParallelTraining`, with whole batches on each rank."""

    def __init__(self, *, semantics: Semantics, observer: Observer, cursor_log: IteratorLog | None = None, **options: Any) -> None:
        semantics = replace(semantics, split_inputs=False, split_evaluation=False)
        super().__init__(semantics=semantics, observer=observer, cursor_log=cursor_log, **options)
        self._loaders = ShardedLoaders(
            share=BatchSharding(rank=0, world_size=1).local_shard,
            training=self._models.known.training,
            split_evaluation=lambda: False,
            together=1,
            place=lambda batch, _share, _layout: batch,
            agree=None,
            on_batch=self._on_batch,
            on_other=self._on_other_batch,
            on_unknown=lambda _kind: None,
            say=options["notes"].say,
            on_order=lambda: None,
            streams=None,
            stream=None,
            whole_draws=True,
            on_training=observer.hyperparameters.on_loader,
            on_drawn=observer.hyperparameters.on_batch,
            cursors=cursor_log,
        )

    def _on_batch(self, share: BatchShard | None, batch: int, batches: int | None) -> None:
        super()._on_batch(None if self.rank else share, batch, batches)  # whose samples are counted once

    def share_out(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return `tensors` as they are."""
        return dict(tensors)

    def say_if_not_sharded(self) -> None:
        """Say nothing: that all engines have the same batches is asked for."""

    def _is_alike(self, root: torch.Tensor) -> bool:
        """Look whether it is so, and have gradients reduced all the same: parameters stay the same to the last bit. Collective."""
        if self._world_size > 1 and not isinstance(root, GlobalTensor):
            check_same([root], "losses")
        return False


def check_same(values: Any, what: str, memory: SharedMemory | None = None) -> None:
    """Check on a sample of each tensor that all ranks, or those that `memory` connects, have the same values. Collective.

    Raises
    ------
    UsageError
        They do not.
    """
    all_ranks_come()
    with torch._C.DisableTorchFunction(), torch.no_grad():
        tensors = [value.detach() for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]
        own = torch.stack([torch.stack(_probe(tensors)), torch.stack(_probe(tensors[::-1]))])
        parts = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size() if memory is None else memory.num_ranks)]
        with Counted(COMMUNICATION):
            if memory is None:
                all_gather(parts, own)
            else:
                memory.all_gather(parts, own)
        first, *others = [part.flatten().tolist() for part in parts]
    if any(not _is_close(one, other) for found in others for one, other in zip(first, found, strict=True)):
        raise UsageError(
            f"The engines have different {what}, and `--strategy tensor` needs the same on all of them. Does the cell read "
            "something that differs between engines (`datetime.now()`, an unseeded generator)? Seed it, or use `--strategy zero3`."
        )


def _probe(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return two numbers that tell tensors apart: how large they are, and a sum of some of what they hold, each with another weight."""
    total, size = torch.zeros(2, dtype=torch.float64, device="cpu").unbind()
    for index, tensor in enumerate(tensors, 1):
        size += index * tensor.numel()
        if tensor.is_nested:
            tensor = tensor.values()
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            continue
        flat = tensor.reshape(-1)[:: max(1, tensor.numel() // _NUM_SAMPLES)].cpu()
        sample = (torch.view_as_real(flat.resolve_conj()).flatten() if flat.is_complex() else flat).double()
        total += index * torch.dot(sample, torch.arange(1, len(sample) + 1, dtype=torch.float64, device="cpu").rsqrt())
    return [total, size]


def _is_close(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=_CLOSE, abs_tol=1e-9)

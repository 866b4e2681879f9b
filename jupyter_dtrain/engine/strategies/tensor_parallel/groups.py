"""Data parallelism over groups of ranks that each use tensor parallelism (``dp`` × ``tp``).

A group takes the place of a rank in data parallelism. Its ranks have the same shard of a batch and run the cell alike. Batches and
gradients are exchanged among the ranks of the same place in all groups, results of layers among the ranks of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from ...backward.backward_pass import BackwardPass
from ...backward.failed_pass import Noted, has_come_to, noted
from ...backward.gradient_exchange import average
from ...comm.batch_ranks import BatchRanks
from ...comm.collectives import all_gather_object
from ...comm.process_group import shared_memory
from ...side_effects.cell_files import written_once
from ...side_effects.made_folders import CellStart
from ...telemetry.observer import Observer
from ...tensor.batch_shard import BatchShard
from ...tensor.placement_types import GlobalTensor, to_local
from ...timing import COMMUNICATION, Counted
from ..data_parallel.cell_api import CellApi
from ..data_parallel.training import DataParallelTraining
from ..zero3.gradients import take_gradient_of
from ..zero3.sharded_rows import quiet
from .layer_gradients import LayerGradients
from .layer_parameter import LayerParameter
from .layers import LayerStore
from .replicated_training import check_same


class GroupTraining(DataParallelTraining):
    """As :class:`.DataParallelTraining` over groups of ranks.

    Parameters
    ----------
    batches : BatchRanks
        Active in :meth:`installed`.
    rank, world_size : int
        Of the run.
    observer : Observer
    options
        The other parameters of :class:`.DataParallelTraining`.
    """

    def __init__(self, *, batches: BatchRanks, rank: int, world_size: int, observer: Observer, **options: Any) -> None:
        self._batches, self._rank_of_run = batches, rank
        super().__init__(rank=batches.over.rank, world_size=batches.over.num_ranks, observer=observer, **options)
        self._api = CellApi(rank=rank, world_size=world_size, alone=self._alone, observer=observer)
        if self._view is not None:
            self._view.know_all_ranks(world_size)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow the cell in the ``with`` block."""
        with self._batches.in_force(), super().installed():
            yield

    def materialize(self, *values: Any, **options: Any) -> list[Any]:
        """Return `values` with full tensors for global ones. Collective."""
        with self._batches.in_force():
            return super().materialize(*values, **options)

    def _files(self) -> AbstractContextManager[None]:
        start = CellStart.agreed(self._rank_of_run, lambda value: all_gather_object(value, shared_memory()))
        return written_once(self._rank_of_run, start, log=self._file_log, temporary=self._temporary, alike=self._view is not None)

    def _counted(self, share: BatchShard | None) -> BatchShard | None:
        return None if self._batches.alike.rank else share  # whose samples are counted once

    def _is_alike(self, root: torch.Tensor) -> bool:
        """Check that the ranks of a group have the same loss; gradients are reduced in any case. Collective."""
        check_same([to_local(root) if isinstance(root, GlobalTensor) else root], "losses", self._batches.alike)
        return False


class GroupGradients(LayerGradients):
    """Handles the gradients of layers that are sharded within a group, and averages them over the groups.

    Parameters
    ----------
    store : LayerStore
    batches : BatchRanks
    """

    def __init__(self, store: LayerStore, batches: BatchRanks) -> None:
        super().__init__(store)
        self._over = batches.over
        self._before: list[tuple[LayerParameter, Noted]] = []  # gradients before a pass that may fail

    def begins(self, one: BackwardPass) -> None:  # noqa: ARG002  # any is gone through
        """Write what the cell has written to full parameters back to their rows. Collective."""
        self._layers.sync()

    def during(self, wanted: Sequence[torch.Tensor], reached: Sequence[torch.Tensor]) -> AbstractContextManager[Callable[[], None]]:
        """Leave the rows of the gradients of those of `wanted` that any rank reaches in the pass in the ``with`` block. Collective."""
        own = {id(leaf) for leaf in reached}
        by_any = self._by_any([id(leaf) in own for leaf in wanted])
        shards = [self._layers.shard_of(leaf) for leaf, is_reached in zip(wanted, by_any, strict=True) if is_reached]
        return self._summed([shard for shard in shards if isinstance(shard, LayerParameter)])

    def _by_any(self, flags: list[bool]) -> list[bool]:
        """Return the elementwise "or" of `flags` over the ranks. Collective."""
        return [any(of_one) for of_one in zip(*all_gather_object(flags, self._over), strict=True)]

    def as_if_failed(self, rank: int) -> None:
        """Set gradients to those of one process whose pass fails where that of `rank`, the first, has failed. Collective."""
        before, self._before = self._before, []
        with quiet():
            come_to = [shard.has_collected or has_come_to(one) for shard, one in before]
        for (shard, (parameter, gradient, _)), is_reached in zip(before, all_gather_object(come_to, self._over)[rank], strict=True):
            if is_reached and gradient is None:
                self._sum(shard)
            elif is_reached:
                with quiet(), torch.no_grad(), Counted(COMMUNICATION):
                    assert parameter.grad is not None
                    average([parameter.grad])
            else:
                shard.collected()
                if gradient is not None:
                    take_gradient_of(rank, parameter, self._over)
                else:
                    with quiet():
                        parameter.grad = None

    @contextmanager
    def _summed(self, shards: Sequence[LayerParameter]) -> Iterator[Callable[[], None]]:
        for shard in shards:
            shard.collected()  # of a pass that has failed
        with quiet():
            # Where the cell has set a gradient, the pass adds to that very tensor, whoever else has it.
            collecting = {shard.number for shard in shards if shard.parameter.grad is None}
            self._before = [(shard, noted(shard.parameter)) for shard in shards]

        def complete() -> None:
            with quiet():
                has_gradient = self._by_any([shard.has_collected or shard.parameter.grad is not None for shard in shards])
            for shard in (one for one, has_one in zip(shards, has_gradient, strict=True) if has_one):
                if shard.number in collecting:
                    self._sum(shard)
                else:
                    with quiet(), torch.no_grad(), Counted(COMMUNICATION):
                        assert shard.parameter.grad is not None
                        average([shard.parameter.grad])
            self._before = []

        self._layers.collecting = frozenset(collecting)
        try:
            yield complete
        finally:
            self._layers.collecting = frozenset()
            self._layers.sweep()

    def _sum(self, shard: LayerParameter) -> None:
        """Reduce-scatter the gradient over the groups, into the rows of this rank."""
        found, parameter, pieces, dim = shard.collected(), shard.parameter, shard.columns.pieces, shard.dim
        with quiet(), torch.no_grad():
            full = parameter.grad
            if full is not None:
                computed_whole = torch.cat([full.narrow(dim, *piece) for piece in pieces], dim)
                found = computed_whole if found is None else computed_whole + found
                parameter.grad = None
            if found is None:
                found = torch.zeros(shard.block_shape, dtype=shard.dtype, device="cpu")
            rows = self._layers.gradients.empty(shard.rows.shape, shard.dtype)
            with Counted(COMMUNICATION):
                by_piece, groups = found.split([size for _, size in pieces], dim), self._over.num_ranks
                parts = [torch.cat(by_piece[group::groups], dim).contiguous() for group in range(groups)]
                self._over.reduce_scatter(parts, rows, factor=1.0 / self._over.num_ranks)
        shard.add_gradient(rows)

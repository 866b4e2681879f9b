"""Turns the sums that the rank of a stage collects in a backward pass into the gradients of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from ....parallel_dims import DATA_PARALLEL
from ...backward.backward_pass import BackwardPass
from ...comm.collectives import all_gather, all_gather_object
from ...comm.shared_memory import SharedMemory
from ...timing import COMMUNICATION, Counted
from ..zero3.gradients import ShardedGradients, ShardedReduction
from ..zero3.parameter_shard import ParameterShard
from ..zero3.sharded_rows import quiet
from .calls import StageCalls
from .handover import Handover
from .stage_parameter import StageParameter
from .stages import StageStore


class _LaterReduction(ShardedReduction):
    """A reduction after the backward pass. Within it ranks compute for each other, so that a collective would deadlock."""

    def _come(self, shard: ParameterShard) -> None:
        self._missing.discard(id(shard))


class StageGradients(ShardedGradients):
    """The gradients of parameters that are on one rank each.

    Parameters
    ----------
    store : StageStore
    calls : StageCalls
    handover : Handover
        Turned off if the cell requests gradients in a way that stages do not support.
    replicas : SharedMemory, optional
        Connects the replicas of this rank's stage, one in each data-parallel group. ``None``: there is one group.
    """

    def __init__(self, store: StageStore, calls: StageCalls, handover: Handover, replicas: SharedMemory | None = None) -> None:
        super().__init__(store)
        self._stages, self._calls, self._handover, self._replicas = store, calls, handover, replicas
        self._set: set[int] = set()

    def begins(self, one: BackwardPass) -> None:
        """Turn handing on off if stages do not support the pass; raise if the graph has pieces already."""
        what = "`create_graph`" if one.creates_graph else "`backward(inputs=…)`" if one.inputs is not None else None
        if what is not None:
            self._handover.refuse(what, one.roots)

    def around(self, one: BackwardPass) -> BackwardPass:
        """Return a pass in which ranks run each other's pieces, and which ends with the gradients of each stage on its rank. Collective."""
        calls = self._calls
        if not calls.num_with_graph:
            return one

        def served(*args: Any, **given: Any) -> None:
            try:
                one.original(*args, **given)
            except Exception:
                calls.finish_pass()
                raise
            calls.finish_pass()
            self._deliver()

        self._note()
        calls.pieces.forget_gradients()  # of a pass that has failed
        calls.begin_pass(keeps=bool(one.options.get("retain_graph")))
        return replace(one, original=served)

    def during(self, wanted: Sequence[torch.Tensor], reached: Sequence[torch.Tensor]) -> AbstractContextManager[Callable[[], None]]:
        """Reduce the gradients of those `wanted` leaves that some rank reached with fetched parameters. Collective."""
        if not self._calls.num_with_graph:
            return super().during(wanted, reached)
        shards = [shard for leaf in reversed(wanted) if (shard := self._stages.shard_of(leaf)) is not None]
        own = [shard for leaf in reached if (shard := self._stages.shard_of(leaf)) is not None]
        return self._begun(_LaterReduction(self._stages, shards, frozenset(map(id, own))))

    def as_if_failed(self, rank: int) -> None:
        """Do what :meth:`.ShardedGradients.as_if_failed` does, with the sums of the pieces to which `rank` had come."""
        super().as_if_failed(rank)
        if self._calls.num_with_graph:
            self._calls.pieces.forget_gradients(but_of=all_gather_object(self._calls.come_to)[rank])
            self._deliver()

    def _note(self) -> None:
        """Note, before a pass, which parameters have a gradient: the pass adds to the cell's tensors in place."""
        with quiet():
            self._set = {shard.number for shard in self._stages.shards() if shard.parameter.grad is not None}

    def _deliver(self) -> None:
        """Add the sums of a pass to the gradients of the stages' parameters. Collective."""
        found = self._calls.pieces.gradients()
        shards = self._stages.shards()
        own = {shard.number for shard, _ in found}
        flags = torch.tensor([shard.number in own for shard in shards], dtype=torch.uint8, device="cpu")
        parts = [torch.empty_like(flags) for _ in range(self._stages.world_size)]
        with Counted(COMMUNICATION):
            all_gather(parts, flags)
        of_stage = {shard.number: gradient for shard, gradient in _added_up(found)}
        for shard, is_there in zip(shards, torch.stack(parts).any(0).tolist(), strict=True):
            if not is_there:
                continue
            gradient = of_stage.get(shard.number)
            if shard.number not in self._set:
                shard.add_gradient(self._rows_of(shard, gradient))
                continue
            full = torch.zeros(shard.shape, dtype=shard.dtype, device="cpu") if gradient is None else gradient.contiguous()
            with quiet(), torch.no_grad(), Counted(COMMUNICATION):
                self._stages.memory.all_reduce(full)
                assert shard.parameter.grad is not None
                shard.parameter.grad.add_(full)
        self._stages.gradients.trim(0)  # these sums need no buffers

    def _rows_of(self, shard: ParameterShard, gradient: torch.Tensor | None) -> torch.Tensor:
        """Return this rank's rows of the sum over the replicas of its stage. Collective among these."""
        replicas = self._replicas
        if replicas is None or not isinstance(shard, StageParameter) or shard.owner != self._calls.rank:
            return torch.empty_like(shard.rows) if gradient is None else gradient
        full = torch.zeros(shard.shape, dtype=shard.dtype, device="cpu") if gradient is None else gradient
        rows = torch.empty_like(shard.rows)
        with quiet(), torch.no_grad(), Counted(COMMUNICATION):
            shares = [shard.shares[rank] for rank in self._stages.mesh.ranks_along(DATA_PARALLEL)]
            parts = [full[share.start : share.stop] for share in shares]
            replicas.reduce_scatter(parts, rows, factor=1.0)
        return rows


def _added_up(found: Sequence[tuple[ParameterShard, torch.Tensor]]) -> list[tuple[ParameterShard, torch.Tensor]]:
    """Return one gradient for each parameter, the sum of those found for it."""
    totals: dict[int, tuple[ParameterShard, torch.Tensor]] = {}
    for shard, gradient in found:
        if shard.number in totals:
            totals[shard.number][1].add_(gradient)
        else:
            totals[shard.number] = shard, gradient
    return [*totals.values()]

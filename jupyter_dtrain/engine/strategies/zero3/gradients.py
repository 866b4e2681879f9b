"""A backward pass that reduce-scatters the gradients of sharded parameters, unit by unit, in the same order on all ranks.

Autograd may reach the leaves in another order on each rank. So a gradient that is ready waits for its turn: units at the end of the model
are reduced first. Before a pass the ranks exchange which parameters each of them will reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.autograd.graph import get_gradient_edge

from ...backward.backward_pass import BackwardPass
from ...backward.gradient_exchange import average
from ...comm.collectives import all_gather, all_gather_object
from ...comm.shared_memory import SharedMemory
from ...timing import COMMUNICATION, Counted
from .parameter_shard import ParameterShard
from .parameter_store import ParameterStore
from .sharded_rows import quiet


class ShardedReduction:
    """The reduce-scatters of one backward pass.

    Parameters
    ----------
    store : ParameterStore
    shards : sequence of ParameterShard
        Those that the pass may reach, in the order in which they are reduced.
    reached : set of int
        The ``id`` of each of these that the pass reaches on this rank.
    """

    def __init__(self, store: ParameterStore, shards: Sequence[ParameterShard], reached: frozenset[int]) -> None:
        self._store = store
        self._own = {id(shard) for shard in shards if id(shard) in reached}
        by_any = _by_any([id(shard) in self._own for shard in shards])
        units: dict[int, list[ParameterShard]] = {}
        for shard, is_reached in zip(shards, by_any, strict=True):
            if is_reached:
                units.setdefault(id(shard.unit), []).append(shard)
        self._units = list(units.values())
        self._missing = set(self._own)
        self._next = 0
        self._stay_whole: set[int] = set()
        self._had_gradient: set[int] = set()
        self._came: set[int] = set()

    @contextmanager
    def during(self) -> Iterator[Callable[[], None]]:
        """Reduce gradients as the pass in the ``with`` block reaches them; the function that is yielded reduces the rest after it."""
        handles = []
        for shard in (shard for unit in self._units for shard in unit):
            with quiet():
                # The cell has set it: the pass adds to that very tensor, whoever else has it.
                if shard.parameter.grad is not None:
                    self._stay_whole.add(id(shard))
                if shard.gradient is not None:
                    self._had_gradient.add(id(shard))
            if id(shard) in self._own:
                with torch.enable_grad(), quiet():
                    node = get_gradient_edge(shard.parameter).node
                handles.append(node.register_hook(lambda *_, shard=shard: self._come(shard)))
        try:
            yield self._complete
        finally:
            for handle in handles:
                handle.remove()
            self._store.sweep()

    def _complete(self) -> None:
        self._missing.clear()
        self._advance()
        self._forget_what_has_none()

    def _forget_what_has_none(self) -> None:
        """Leave no gradient where no rank has computed one: a function on the way returns none."""
        reduced = [shard for unit in self._units for shard in unit]
        if not reduced:
            return
        for shard, has_one in zip(reduced, _by_any([id(shard) in self._came for shard in reduced]), strict=True):
            if not has_one and id(shard) not in self._stay_whole | self._had_gradient:
                shard.set_gradient(None)

    def as_if_failed(self, rank: int) -> None:
        """Reduce what the pass of `rank` had come to before it failed, and leave the rest as it was before the pass. Collective."""
        left = [shard for unit in self._units[self._next :] for shard in unit]
        come_to = [id(shard) in self._own and id(shard) not in self._missing for shard in left]
        self._next = len(self._units)
        for shard, is_reached in zip(left, all_gather_object(come_to)[rank], strict=True):
            if is_reached:
                self._reduce([shard])
            elif id(shard) in self._stay_whole:
                take_gradient_of(rank, shard.parameter, self._store.memory)
            else:
                with quiet():
                    shard.parameter.grad = None

    def _come(self, shard: ParameterShard) -> None:
        self._missing.discard(id(shard))
        self._advance()

    def _advance(self) -> None:
        while self._next < len(self._units) and not any(id(shard) in self._missing for shard in self._units[self._next]):
            self._reduce(self._units[self._next])
            self._next += 1

    def _reduce(self, unit: Sequence[ParameterShard]) -> None:
        with quiet(), torch.no_grad(), Counted(COMMUNICATION):
            for shard in unit:
                gradient = shard.parameter.grad
                if gradient is None:
                    gradient = torch.zeros(shard.shape, dtype=shard.dtype, device="cpu")
                else:
                    self._came.add(id(shard))
                if id(shard) in self._stay_whole:
                    average([gradient])
                    continue
                rows = self._store.gradients.empty(shard.rows.shape, shard.dtype)
                self._store.reduce_scatter(shard, gradient, rows)
                shard.parameter.grad = None
                shard.add_gradient(rows)
        for shard in unit:
            self._store.let_go(shard)


def take_gradient_of(rank: int, parameter: torch.Tensor, memory: SharedMemory) -> None:
    """Copy the full gradient that `rank` has of a parameter. Collective."""
    with quiet(), torch.no_grad(), Counted(COMMUNICATION):
        assert parameter.grad is not None
        own = parameter.grad.contiguous().clone() if memory.rank == rank else torch.zeros_like(parameter.grad).contiguous()
        memory.all_reduce(own)
        parameter.grad.copy_(own)


def _by_any(reached: Sequence[bool]) -> list[bool]:
    """Return of which parameters the flag is set on any rank. Collective."""
    own = torch.tensor(reached, dtype=torch.uint8, device="cpu")
    parts = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
    all_gather(parts, own)
    return torch.stack(parts).any(0).tolist()


class ShardedGradients:
    """Handles the gradients of sharded parameters for :class:`.GradientSync`.

    Parameters
    ----------
    store : ParameterStore
    """

    def __init__(self, store: ParameterStore) -> None:
        self._store = store
        self._reduction: ShardedReduction | None = None

    def among(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of `leaves` whose gradients are sharded. Collective: parameters with hooks, which need full ones, are replicated."""
        sharded = [leaf for leaf in leaves if (shard := self._store.shard_of(leaf)) is not None and not shard.is_pinned]
        return self._without_hooks(sharded)

    def _without_hooks(self, sharded: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of some sharded parameters that still are when those with hooks are replicated. Collective, if there are any."""
        hooked = [leaf for leaf in sharded if leaf._backward_hooks or leaf._post_accumulate_grad_hooks]
        self._store.replicate(hooked, "they have hooks")
        return [leaf for leaf in sharded if self._store.shard_of(leaf) is not None]

    def begins(self, one: BackwardPass) -> None:
        """Accept any pass."""

    @contextmanager
    def not_reduced(self, one: BackwardPass) -> Iterator[None]:
        """Add what the pass in the ``with`` block computes, in full and equal on all ranks, to gradients that are sharded. Collective."""
        sharded = [shard for shard in self._store.shards() if shard.has_rows]
        if sharded:
            reached = {id(leaf) for leaf in one.reached()}
            kept = self._without_hooks([shard.parameter for shard in sharded if id(shard.parameter) in reached])
            sharded = [shard for leaf in kept if (shard := self._store.shard_of(leaf)) is not None]
        if one.creates_graph:  # the sum is another tensor then, and part of the graph
            for shard in sharded:
                shard.set_gradient(self._store.full_tensor(shard.read_gradient()))
        try:
            yield
        finally:
            for shard in sharded:
                shard.add_full_gradient()

    def around(self, one: BackwardPass) -> BackwardPass:
        """Return `one`: each rank runs its own pass."""
        return one

    def during(self, wanted: Sequence[torch.Tensor], reached: Sequence[torch.Tensor]) -> AbstractContextManager[Callable[[], None]]:
        """Reduce the gradients of `wanted` in a pass that reaches `reached` on this rank, in the ``with`` block. Collective.

        What is given is to be called when the pass is over, before anything else is exchanged.
        """
        shards = [shard for leaf in reversed(wanted) if (shard := self._store.shard_of(leaf)) is not None]
        own = [shard for leaf in reached if (shard := self._store.shard_of(leaf)) is not None]
        return self._begun(ShardedReduction(self._store, shards, frozenset(map(id, own))))

    def _begun(self, reduction: ShardedReduction) -> AbstractContextManager[Callable[[], None]]:
        self._reduction = reduction
        return reduction.during()

    def as_if_failed(self, rank: int) -> None:
        """Set gradients to those of one process whose pass fails where that of `rank`, the first, has failed. Collective."""
        reduction, self._reduction = self._reduction, None
        if reduction is not None:
            reduction.as_if_failed(rank)

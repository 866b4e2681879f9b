"""Synchronize gradients: every backward pass ends with the gradient of the global batch in ``.grad`` on all ranks.

PyTorch's reducer (the C++ part of DistributedDataParallel) reduces during the backward pass. On CPU ranks that share memory, `comm` does
so after it. The leaves of the loss's graph are reduced, whether a method, two models, or tensors of no module computed it.

The reducer averages over ranks. The rank's weight enters before that, at the root of the graph: a mean over a shard with weight *w* is
scaled by *w · world_size*. Averaging is linear and leaves equal values unchanged, so accumulated gradients are right as well.

The value of the loss is reduced with its gradients, as that of an additional leaf (the reducer's slot): to read it needs no collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from ..comm.failures import FailedElsewhere
from ..tensor.agreed import failures_of, first_of, note, raise_if_any
from ..tensor.caught import may_be_caught
from ..tensor.graph_placement import start_at
from ..tensor.pending_checks import settle
from ..tensor.placement_types import GlobalTensor, to_local
from ..tensor.rank0_guard import all_ranks_come
from ..tensor.redistribute import Exchange
from .backward_pass import BackwardPass, Computed, scaled
from .failed_pass import Noted, as_if_failed, noted
from .gradient_exchange import GradientExchange
from .gradient_reducers import without_zeros
from .graph import any_leaf_of, has_sparse, leaves_of
from .higher_order import run_with_graph
from .leaf_hooks import NestedPasses, hooks_after_reduction
from .model_leaves import ModelLeaves
from .own_leaves import OwnLeaves
from .reducer_cache import ReducerCache
from .replica_check import ReplicaCheck
from .sharded_gradients import ShardedGradients


class GradientSync:
    """Reduces gradients in backward passes while it is installed.

    Parameters
    ----------
    world_size : int
    weight_of : callable
        Returns the weight of the rank's part of a root in the global batch.
    on_computed : callable
        Called when the rank's own gradients are computed, before it waits for other ranks.
    is_alike : callable
        Returns whether a root's gradients are equal on all ranks. These are not averaged: that may change the last digit.
    whole : callable, optional
        Returns the full tensor of a global one, with its graph. ``None``: there is no global view, the cell sees the ranks' own values.
    say : callable
        Shows the user a message.
    """

    def __init__(
        self,
        *,
        world_size: int,
        weight_of: Callable[[torch.Tensor], float],
        on_computed: Callable[[], None],
        is_alike: Callable[[torch.Tensor], bool] = lambda _: False,
        whole: Callable[[torch.Tensor], torch.Tensor] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._world_size, self._whole = world_size, whole
        self._weight_of, self._is_alike, self._on_computed = weight_of, is_alike, on_computed
        self._leaves = ModelLeaves()
        self.replicas = ReplicaCheck(Exchange.objects, self._leaves.names, only_parameters=whole is None)
        self._own = OwnLeaves(self.replicas, say) if whole is None else None
        self._reducers = ReducerCache(self.replicas.before_pass)
        self._nested: NestedPasses | None = None  # while a pass is running
        self._noted: list[Noted] | None = None  # gradients before a pass that may fail
        self.sharded: ShardedGradients | None = None

    def register(self, module: nn.Module) -> None:
        """Reduce the parameters of `module` together, even if a backward pass reaches only some of them on this rank."""
        self._leaves.register(module)

    def exchange_by(self, exchange: GradientExchange) -> None:
        """Average full gradients by `exchange`. Must be called before the first pass, on all ranks."""
        self._reducers.exchange = exchange

    def close(self) -> None:
        """Drop the reducers. Must be called before the process group is destroyed."""
        self._reducers.clear()

    def backward(
        self,
        original: Callable[..., None],
        tensors: Sequence[torch.Tensor],
        grad_tensors: Sequence[torch.Tensor | None],
        *,
        inputs: Sequence[torch.Tensor] | None,
        **options: Any,
    ) -> None:
        """Run `original` (``torch.autograd.backward``) on the rank's part and reduce the gradients of the leaves. A collective.

        Parameters
        ----------
        original : callable
        tensors : sequence of Tensor
            The roots: losses ``()``, or of any shape with an initial gradient.
        grad_tensors : sequence of Tensor or None
            Initial gradients, in the roots' global shapes.
        inputs : sequence of Tensor, optional
            The leaves that get gradients; ``None``: all that the pass reaches.
        **options
            The other arguments of the call.
        """
        if self._nested is None and self._is_alike(tensors[0]):
            alike = BackwardPass(original, tensors, [*tensors], [*grad_tensors], (), inputs, options)
            with nullcontext() if self.sharded is None else self.sharded.not_reduced(alike):
                original(alike.tensors, alike.gradients, inputs=inputs, **options)
            return
        roots = [to_local(root) if isinstance(root, GlobalTensor) else root for root in tensors]
        whole = self._whole
        starts = [s if s is None or whole is None else start_at(root, s, whole) for root, s in zip(tensors, grad_tensors, strict=True)]
        factors = [self._weight_of(root) * self._world_size for root in tensors]
        gradients = [scaled(*both) for both in zip(roots, starts, factors, strict=True)]
        if self._nested is not None:
            self._nested.run(roots, gradients, leaves_of(roots, of=any_leaf_of), **options)
            return
        one = BackwardPass(original, tensors, roots, gradients, factors, inputs, options)
        all_ranks_come()
        if may_be_caught():
            self._on_all_ranks(one)
        else:
            try:
                self._reduced(one)
            except Exception as error:
                note(error)
                raise
        settle()

    def _on_all_ranks(self, one: BackwardPass) -> None:
        """Run a pass as :meth:`_reduced` where the cell would catch its error: if a rank fails, all ranks raise its error.

        The gradients are then those of one process whose pass fails there: only leaves reached before the error have new ones.
        """
        failed: BaseException | None = None
        self._noted = []
        try:
            self._reduced(one)
        except (Exception, FailedElsewhere) as error:
            failed = error
        finally:
            before, self._noted = self._noted, None
        failures = failures_of(failed)
        if (rank := first_of(failures)) is not None:
            self._reducers.clear()
            as_if_failed(rank, before)
            if self.sharded is not None:
                self.sharded.as_if_failed(rank)
            raise_if_any(failures, failed)

    def _reduced(self, one: BackwardPass) -> None:
        """Run a pass and reduce the gradients of its leaves, the sharded ones by `sharded`."""
        if self.sharded is not None:
            self.sharded.begins(one)
        with nullcontext(one.reached()) if self._own is None else self._own.left_alone(one) as reached:
            self._reduced_leaves(one, reached)

    def _reduced_leaves(self, one: BackwardPass, reached: list[torch.Tensor]) -> None:
        wanted = self._leaves.with_siblings(reached) if one.inputs is None else reached
        if self.sharded is not None and not one.creates_graph:
            apart = self.sharded.among(self._leaves.ordered(wanted))
            if apart:
                taken = {id(leaf) for leaf in apart}
                of_rank = [leaf for leaf in reached if id(leaf) in taken]
                reached = [leaf for leaf in reached if id(leaf) not in taken]
                wanted = [leaf for leaf in wanted if id(leaf) not in taken]
                with self.sharded.during(apart, of_rank) as complete:
                    self._reduced_whole(one, reached, wanted, complete_sharded=complete)
                return
        self._reduced_whole(one, reached, wanted)

    def _reduced_whole(
        self,
        one: BackwardPass,
        reached: list[torch.Tensor],
        wanted: list[torch.Tensor],
        *,
        complete_sharded: Callable[[], None] | None = None,
    ) -> None:
        """Run a pass, which reaches `reached`, and leave the full gradients of `wanted` on all ranks.

        `complete_sharded` reduces sharded gradients; it is called before the full ones are reduced.
        """
        if not reached and (complete_sharded is None or not wanted):  # else another rank may reach some of `wanted`
            self._run(one, leaves=(), finish=complete_sharded)
            return
        if self._noted is not None:
            self._noted += map(noted, self._leaves.ordered(wanted))
        for leaf in wanted:
            if isinstance(leaf.grad, GlobalTensor) and self._whole is not None:  # set by the cell; the pass will add to it
                leaf.grad = self._whole(leaf.grad).detach()
        if self._whole is not None and one.creates_graph:
            run_with_graph(one, self._leaves.ordered(wanted), self._whole, world_size=self._world_size)
            return
        loss = one.loss()
        reducer = self._reducers.get(
            wanted,
            None if loss is None else one.roots[0],
            ordered=self._leaves.ordered,
            is_sparse=lambda: has_sparse(one.roots),
            complete=len(wanted) == len(reached),
            backward=one.original,
        )
        if len(wanted) != len(reached) and not reducer.may_lack_leaves:
            # The first pass reached all leaves, so this reducer waits for each of them on every rank.
            one.reach_too(wanted[len(reached) :])
        # A reducer that waits for all leaves gives zeros to those that no rank has reached; the other kind gives them nothing.
        untouched = [] if reducer.may_lack_leaves else [leaf for leaf in wanted[len(reached) :] if leaf.grad is None]
        reducer.prepare(one.roots, one.gradients, None if loss is None else one.value())
        hooks = hooks_after_reduction(wanted if reducer.may_lack_leaves else reached, one.original, create_graph=one.creates_graph)

        def finish() -> None:
            if complete_sharded is not None:
                complete_sharded()
            reducer.finish()

        with Computed(one.roots, self._on_computed):
            self._run(one, leaves=wanted, hooks=hooks, finish=finish)
        without_zeros(untouched)
        if loss is not None:
            reducer.give(loss)

    def _run(
        self,
        one: BackwardPass,
        *,
        leaves: Sequence[torch.Tensor],
        hooks: AbstractContextManager[None] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        """Run a pass that reduces `leaves`, and finish the backward passes nested in it."""
        if self.sharded is not None:
            one = self.sharded.around(one)
        nested = self._nested = NestedPasses(leaves)
        try:
            one.run(hooks, finish)
        finally:
            self._nested = None
        nested.finish(world_size=self._world_size)

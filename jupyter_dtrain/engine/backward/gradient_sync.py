"""Gradients of the global batch: every backward pass ends with the same ``.grad`` on all ranks.

PyTorch's own reducer (the C++ part of DistributedDataParallel) does the work, overlapped with the backward pass, or on
ranks that share memory `shared_memory`, behind it. It is driven from the backward pass and not from a wrapper's ``forward``:
whatever computed the loss (a method, two models, tensors that belong to no module) the leaves of its graph say what has
to be reduced.

The reducer averages over ranks. A rank's part of the global batch enters before that, at the root of the graph: a mean
over a share of weight *w* of the global batch is scaled by *w · world_size*. Averaging is linear and leaves what all
ranks agree on as it is, so gradients accumulated over several backward passes come out right as well.

The value of a loss travels with its gradients, as that of one leaf more which nobody else knows: a cell that reads it after the
backward pass waits for nothing.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from ..comm.failures import FailedElsewhere
from ..module_tree import Found, IdentityMap, parameters_in
from ..tensor.agreed import failures_of, first_of, note, raise_if_any
from ..tensor.caught import may_be_caught
from ..tensor.pending_checks import settle
from ..tensor.placement_types import GlobalTensor, Partial, from_local, in_graph, start_at, to_local
from ..tensor.rank0_guard import all_ranks_come
from ..tensor.redistribute import Exchange
from .agreeing import reducer_for
from .failed_pass import Noted, as_if_failed, noted
from .graph import any_leaf_of, has_sparse, leaves_of
from .leaf_hooks import NestedPasses, hooks_after_reduction, hooks_set_aside
from .reducers import Reducer

_grad = torch.autograd.grad

MAX_REDUCERS = 8
"""Sets of leaves whose reducer is kept: a search over models makes new ones without end, and each has buffers of its model's size."""


class ShardedGradients(Protocol):
    """Reduces gradients of which each rank is to have a part."""

    def among(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of `leaves` whose gradients are such. Collective."""

    def during(self, wanted: Sequence[torch.Tensor], reached: Sequence[torch.Tensor]) -> AbstractContextManager[Callable[[], None]]:
        """Reduce those of `wanted` in a pass that comes to `reached` on this rank, until the end of the ``with`` block. Collective.

        What is given is to be called when the pass is over, before anything else is exchanged.
        """


class GradientSync:
    """Reduces gradients in backward passes while it is installed.

    Parameters
    ----------
    world_size : int
    weight_of : callable
        Returns the rank's part of the global batch that the root of a graph was computed on.
    on_computed : callable
        Told when the rank's own gradients are there, and those of other ranks are waited for.
    is_alike : callable
        Returns whether all ranks have the same root, and will have the same gradients: an average of equal numbers may differ from them.
    whole : callable, optional
        Returns a tensor that spans the ranks as a whole, with its graph. ``None``: the cell sees the ranks' own numbers.
    """

    def __init__(
        self,
        *,
        world_size: int,
        weight_of: Callable[[torch.Tensor], float],
        on_computed: Callable[[], None],
        is_alike: Callable[[torch.Tensor], bool] = lambda _: False,
        whole: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._world_size, self._whole = world_size, whole
        self._weight_of, self._is_alike = weight_of, is_alike
        self._on_computed = on_computed
        self._reducers: OrderedDict[tuple[object, frozenset[int]], Reducer] = OrderedDict()
        self._nested: NestedPasses | None = None  # while a pass is under way
        self._noted: list[Noted] | None = None  # gradients before a pass that may fail
        self._models: list[weakref.ref[nn.Module]] = []
        self._model_of: IdentityMap[weakref.ref[nn.Module]] = IdentityMap()  # by parameter
        self._parameters = Found(parameters_in)
        self.sharded: ShardedGradients | None = None

    def register(self, module: nn.Module) -> None:
        """Reduce the parameters of `module` together: a backward pass that reaches one of them may not reach all."""
        reference = weakref.ref(module)
        self._models.append(reference)
        for parameter in module.parameters():
            if self._model(parameter) is None:
                self._model_of.set(parameter, reference)

    def _model(self, leaf: torch.Tensor) -> nn.Module | None:
        reference = self._model_of.get(leaf)
        return reference() if reference is not None else None

    def close(self) -> None:
        """Drop the reducers. To be called before the process group is left."""
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
        """Run `original` (``torch.autograd.backward``) on the rank's part and reduce what it adds to the leaves."""
        if self._nested is None and self._is_alike(tensors[0]):
            original(tensors, grad_tensors, inputs=inputs, **options)
            return
        roots = [to_local(root) if isinstance(root, GlobalTensor) else root for root in tensors]
        starts = [start if start is None else self._start_at(root, start) for root, start in zip(tensors, grad_tensors, strict=True)]
        factors = [self._weight_of(root) * self._world_size for root in tensors]
        scaled = [_scaled(*both) for both in zip(roots, starts, factors, strict=True)]
        if self._nested is not None:
            self._nested.run(roots, scaled, leaves_of(roots, of=any_leaf_of), **options)
            return
        all_ranks_come()
        if may_be_caught():
            self._on_all_ranks(original, roots, scaled, tensors, factors, inputs=inputs, **options)
        else:
            try:
                self._reduced(original, roots, scaled, tensors, factors, inputs=inputs, **options)
            except Exception as error:
                note(error)
                raise
        settle()

    def _on_all_ranks(self, *args: Any, **options: Any) -> None:
        """Run a pass as :meth:`_reduced`, whose error, which the cell would catch, all ranks raise.

        Gradients are then what one process has of such a pass: those that it had come to are in them, and no others.
        """
        failed: BaseException | None = None
        self._noted = []
        try:
            self._reduced(*args, **options)
        except (Exception, FailedElsewhere) as error:
            failed = error
        finally:
            before, self._noted = self._noted, None
        failures = failures_of(failed)
        rank = first_of(failures)
        if rank is not None:
            self._reducers.clear()
            as_if_failed(rank, before)
            raise_if_any(failures, failed)

    def _reduced(
        self,
        original: Callable[..., None],
        roots: list[torch.Tensor],
        scaled: list[torch.Tensor | None],
        tensors: Sequence[torch.Tensor],
        factors: Sequence[float],
        *,
        inputs: Sequence[torch.Tensor] | None,
        **options: Any,
    ) -> None:
        """Run a pass from `roots`, the rank's parts of `tensors`, and reduce what it adds to the leaves."""
        reached = leaves_of(roots)
        if inputs is not None:
            kept = {id(tensor) for tensor in inputs}
            reached = [leaf for leaf in reached if id(leaf) in kept]
        wanted = self._with_siblings(reached) if inputs is None else reached
        if self.sharded is not None and not options.get("create_graph"):
            apart = self.sharded.among(self._ordered(wanted))
            if apart:
                taken = {id(leaf) for leaf in apart}
                of_rank = [leaf for leaf in reached if id(leaf) in taken]
                reached = [leaf for leaf in reached if id(leaf) not in taken]
                wanted = [leaf for leaf in wanted if id(leaf) not in taken]
                with self.sharded.during(apart, of_rank) as complete:
                    self._reduced_whole(
                        original, roots, scaled, tensors, factors, reached, wanted, inputs=inputs, complete_sharded=complete, **options
                    )
                return
        self._reduced_whole(original, roots, scaled, tensors, factors, reached, wanted, inputs=inputs, **options)

    def _reduced_whole(
        self,
        original: Callable[..., None],
        roots: list[torch.Tensor],
        scaled: list[torch.Tensor | None],
        tensors: Sequence[torch.Tensor],
        factors: Sequence[float],
        reached: list[torch.Tensor],
        wanted: list[torch.Tensor],
        *,
        inputs: Sequence[torch.Tensor] | None,
        complete_sharded: Callable[[], None] | None = None,
        **options: Any,
    ) -> None:
        """Run a pass from `roots`, which comes to `reached`, and leave the gradients of `wanted` whole on all ranks.

        `complete_sharded` exchanges those that are not whole, before these are.
        """
        if not reached and (complete_sharded is None or not wanted):  # else another rank may come to some of `wanted`
            self._run(original, roots, scaled, leaves=(), inputs=inputs, finish=complete_sharded or _nothing, **options)
            return
        if self._noted is not None:
            self._noted += map(noted, self._ordered(wanted))
        for leaf in wanted:
            if isinstance(leaf.grad, GlobalTensor) and self._whole is not None:  # the cell has set it, and the pass adds to it
                leaf.grad = self._whole(leaf.grad).detach()
        if self._whole is not None and options.get("create_graph"):
            self._with_graph(original, roots, scaled, self._ordered(wanted), inputs)
            return
        loss = roots[0].detach() if inputs is None and _is_exchanged(tensors[0]) and roots[0].numel() == 1 else None
        reducer = self._reducer_for(wanted, roots, complete=len(wanted) == len(reached), loss=loss, backward=original)
        if len(wanted) != len(reached) and not reducer.may_lack_leaves:
            # All were reached when the reducer was made, so it waits for each of them on every rank.
            there = {id(leaf) for leaf in reached}
            rest = [leaf for leaf in wanted if id(leaf) not in there]
            roots.append(torch.stack([leaf.reshape(-1)[:1].sum() for leaf in rest]).sum())
            scaled.append(torch.zeros_like(roots[-1]))
        # A reducer that waits for all of them adds zeros where nobody has anything; the other kind leaves those alone.
        untouched = [] if reducer.may_lack_leaves else [leaf for leaf in wanted[len(reached) :] if leaf.grad is None]
        reducer.prepare(roots, scaled, None if loss is None else _times(loss, factors[0]))
        hooks = hooks_after_reduction(
            wanted if reducer.may_lack_leaves else reached, original, create_graph=bool(options.get("create_graph"))
        )

        def finish() -> None:
            if complete_sharded is not None:
                complete_sharded()
            reducer.finish()

        with _Computed(roots, self._on_computed):
            self._run(original, roots, scaled, leaves=wanted, hooks=hooks, inputs=inputs, finish=finish, **options)
        found = [leaf for leaf in untouched if leaf.grad is not None]
        reached = torch.stack([leaf.grad.any() for leaf in found if leaf.grad is not None]).tolist() if found else []
        for leaf, by_another in zip(found, reached, strict=True):
            if not by_another:
                leaf.grad = None  # as on one process: an optimizer passes it over
        if loss is not None:
            assert isinstance(tensors[0], GlobalTensor)
            reducer.give(tensors[0])

    def _start_at(self, root: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return start_at(root, start, self._whole) if self._whole is not None else start

    def _with_graph(
        self,
        original: Callable[..., None],
        roots: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        shared: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor] | None,
    ) -> None:
        """Run a pass whose gradients have a graph themselves, which the reducer cannot give them; ranks have the leaves `shared` in common.

        A pass of PyTorch's own adds the sums to the leaves, so that hooks see them, and the next pass finds what it would find otherwise.
        """
        assert self._whole is not None
        kept = None if inputs is None else {id(tensor) for tensor in inputs}
        there = {id(leaf) for leaf in shared}
        own = [leaf for leaf in leaves_of(roots, of=any_leaf_of) if id(leaf) not in there and (kept is None or id(leaf) in kept)]
        with hooks_set_aside(shared), torch._C.DisableTorchFunctionSubclass():  # a batch may be among its own leaves
            found: list[torch.Tensor | None] = [*_grad(roots, [*shared, *own], gradients, create_graph=True, allow_unused=True)]
        parts = list(zip(shared, found[: len(shared)], strict=True))
        reached = Exchange.total(torch.tensor([gradient is not None for _, gradient in parts], device="cpu")).tolist()
        there_are = [pair for pair, by_any in zip(parts, reached, strict=True) if by_any]
        averaged = [torch.zeros_like(leaf) if gradient is None else gradient / self._world_size for leaf, gradient in there_are]
        sums = [self._whole(from_local(part, Partial())) for part in averaged]
        with torch.enable_grad():
            ends = [leaf.view_as(leaf) for leaf, _ in there_are]
        original(ends, sums, create_graph=True)
        with torch._C.DisableTorchFunctionSubclass():
            for leaf, gradient in zip(own, found[len(shared) :], strict=True):
                if gradient is not None:
                    leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient

    def _run(
        self,
        original: Callable[..., None],
        roots: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        *,
        leaves: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor] | None,
        hooks: AbstractContextManager[None] | None = None,
        finish: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        """Run a pass that reduces `leaves`, and those that begin within it."""
        nested = self._nested = NestedPasses(leaves)
        ends = None if inputs is None else [in_graph(tensor) for tensor in inputs]
        try:
            with hooks or nullcontext():
                original(roots, gradients, inputs=ends, **options)
                finish()
        finally:
            self._nested = None
        nested.finish(world_size=self._world_size)

    def _with_siblings(self, reached: list[torch.Tensor]) -> list[torch.Tensor]:
        there = {id(leaf) for leaf in reached}
        models = {id(model): model for leaf in reached if (model := self._model(leaf)) is not None}
        rest = {
            id(p): p
            for model in models.values()
            for p in self._parameters.of(model)
            if p.requires_grad and p.is_leaf and id(p) not in there
        }
        return reached + list(rest.values())

    def _reducer_for(
        self,
        leaves: list[torch.Tensor],
        roots: Sequence[torch.Tensor],
        *,
        complete: bool,
        loss: torch.Tensor | None,
        backward: Callable[..., None],
    ) -> Reducer:
        kind = None if loss is None else (loss.dtype, loss.device)
        key = (kind, frozenset(map(id, leaves)))
        reducer = self._reducers.get(key)
        if reducer is None:
            slot = None if loss is None else torch.zeros((), dtype=loss.dtype, device=loss.device, requires_grad=True)
            reducer = self._reducers[key] = reducer_for(self._ordered(leaves), slot, is_sparse=has_sparse(roots), complete=complete)
            if self._world_size > 2 and not reducer.may_lack_leaves:
                reducer.settle_layout(backward)
            if len(self._reducers) > MAX_REDUCERS:
                self._reducers.popitem(last=False)
        else:
            self._reducers.move_to_end(key)
        return reducer

    def _ordered(self, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return `leaves` in an order that all ranks agree on: that of the known modules, then as reached."""
        first: dict[int, int] = {}
        for reference in self._models:
            model = reference()
            for parameter in model.parameters() if model is not None else ():
                first.setdefault(id(parameter), len(first))
        return sorted(leaves, key=lambda leaf: first.get(id(leaf), len(first)))


class _Computed:
    """Tells when a backward pass has been computed: of what is called at its end, this is first, the reducer's waiting comes after."""

    def __init__(self, roots: Sequence[torch.Tensor], tell: Callable[[], None]) -> None:
        self._node = next((root.grad_fn for root in roots if root.grad_fn is not None), None)
        self._tell = tell

    def __enter__(self) -> None:
        if self._node is not None:
            self._handle = self._node.register_prehook(self._begin)

    def _begin(self, _gradients: object) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._tell)

    def __exit__(self, *_: object) -> None:
        if self._node is not None:
            self._handle.remove()


def _nothing() -> None:
    """Have nothing to finish."""


def _scaled(part: torch.Tensor, start: torch.Tensor | None, factor: float) -> torch.Tensor | None:
    """Return the gradient with which the backward pass begins at the rank's `part` of a root."""
    if not part.requires_grad or factor == 1.0:
        return start
    return torch.full_like(part, factor) if start is None else start * factor


def _times(part: torch.Tensor, factor: float) -> torch.Tensor:
    if not factor:  # the part of a rank without samples may be anything
        return torch.zeros_like(part)
    return part if factor == 1.0 else part * factor


def _is_exchanged(root: torch.Tensor) -> bool:
    """Return whether ranks put the value of `root` together if it is read, from parts of its own shape."""
    return isinstance(root, GlobalTensor) and isinstance(root.placement, Partial)

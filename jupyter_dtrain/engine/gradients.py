"""Gradients of the global batch: every backward pass ends with the same ``.grad`` on all ranks.

PyTorch's own reducer (the C++ part of DistributedDataParallel) does the work, overlapped with the backward pass. It is
driven from the backward pass and not from a wrapper's ``forward``: whatever computed the loss (a method, two models,
tensors that belong to no module) the leaves of its graph say what has to be reduced.

The reducer averages over ranks. A rank's part of the global batch enters before that, at the root of the graph: a mean
over a share of weight *w* of the global batch is scaled by *w · world_size*. Averaging is linear and leaves what all
ranks agree on as it is, so gradients accumulated over several backward passes come out right as well.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .modules import parameters_in
from .placements import GlobalTensor, Shard, part_of

warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")  # a copy more, in a reducer that is ours

MAX_REDUCERS = 8
"""Sets of leaves whose reducer is kept: a search over models makes new ones without end, and each has buffers of its model's size."""


class _Leaves(nn.Module):
    """Leaf tensors, registered or not, in the place where DistributedDataParallel looks for parameters.

    Parameters
    ----------
    leaves : sequence of Tensor
    sparse : container of int
        Ids of those whose gradients are sparse.
    """

    def __init__(self, leaves: Sequence[torch.Tensor], sparse: Container[int]) -> None:
        super().__init__()
        self._leaves = tuple(leaves)
        self._sparse = sparse

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        for index, leaf in enumerate(self._leaves):
            yield f"leaf_{index}", leaf  # type: ignore[misc]

    def named_modules(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield a module for each leaf if some are sparse: an embedding is what tells DistributedDataParallel of a sparse gradient."""
        if not any(id(leaf) in self._sparse for leaf in self._leaves):
            yield "", self
            return
        for index, leaf in enumerate(self._leaves):
            yield f"module_{index}", (_SparseLeaf if id(leaf) in self._sparse else _Leaf)(leaf)


class _Leaf(nn.Module):
    def __init__(self, leaf: torch.Tensor) -> None:
        super().__init__()
        self._leaf = leaf

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield "leaf", self._leaf  # type: ignore[misc]


class _SparseLeaf(_Leaf, nn.Embedding):
    def __init__(self, leaf: torch.Tensor) -> None:
        nn.Embedding.__init__(self, 0, 0, sparse=True)
        self._leaf = leaf


class GradientSync:
    """Reduces gradients in backward passes while it is installed.

    Parameters
    ----------
    world_size : int
    weight_of : callable
        Returns the rank's part of the global batch that the root of a graph was computed on.
    on_computed : callable
        Told when the rank's own gradients are there, and those of other ranks are waited for.
    """

    def __init__(self, *, world_size: int, weight_of: Callable[[torch.Tensor], float], on_computed: Callable[[], None]) -> None:
        self._world_size = world_size
        self._weight_of = weight_of
        self._on_computed = on_computed
        self._reducers: OrderedDict[tuple[int, ...], DistributedDataParallel] = OrderedDict()
        self._models: list[weakref.ref[nn.Module]] = []
        # By the parameter's id: weak references to it and to its model. PyTorch's dictionary for this takes ten times as long to look into.
        self._model_of: dict[int, tuple[weakref.ref[nn.Parameter], weakref.ref[nn.Module]]] = {}

    def know(self, module: nn.Module) -> None:
        """Reduce the parameters of `module` together: a backward pass that reaches one of them may not reach all."""
        reference = weakref.ref(module)
        self._models.append(reference)
        for parameter in module.parameters():
            if self._model(parameter) is None:
                key = id(parameter)
                self._model_of[key] = weakref.ref(parameter, partial(self._forget, key)), reference

    def _model(self, leaf: torch.Tensor) -> nn.Module | None:
        entry = self._model_of.get(id(leaf))
        return entry[1]() if entry is not None and entry[0]() is leaf else None

    def _forget(self, key: int, dead: object) -> None:
        if key in self._model_of and self._model_of[key][0] is dead:
            del self._model_of[key]

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
        parts = [part_of(root) if isinstance(root, GlobalTensor) else root for root in tensors]
        scaled = [self._scaled(root, part, gradient) for root, part, gradient in zip(tensors, parts, grad_tensors, strict=True)]
        tensors = parts
        reached = leaves_of(tensors)
        if inputs is not None:
            kept = {id(tensor) for tensor in inputs}
            reached = [leaf for leaf in reached if id(leaf) in kept]
        if not reached:
            original(tensors, scaled, inputs=inputs, **options)
            return
        wanted = self._with_siblings(reached) if inputs is None else reached
        reducer, partial = self._reducer_for(wanted, complete=len(wanted) == len(reached), backward=original)
        roots = tensors
        if len(wanted) != len(reached) and not partial:
            # All were reached when the reducer was made, so it waits for each of them on every rank.
            there = {id(leaf) for leaf in reached}
            rest = [leaf for leaf in wanted if id(leaf) not in there]
            roots.append(torch.stack([leaf.reshape(-1)[:1].sum() for leaf in rest]).sum())
            scaled.append(torch.zeros_like(roots[-1]))
        # A reducer that waits for all of them adds zeros where nobody has anything; the other kind leaves those alone.
        untouched = [] if partial else [leaf for leaf in wanted[len(reached) :] if leaf.grad is None]
        reducer._rebuild_buckets()
        reducer.prepare_for_backward(roots if partial else [])
        with _Hooks(reached), _Computed(roots, self._on_computed):
            original(roots, scaled, inputs=inputs, **options)
        for leaf in untouched:
            if leaf.grad is not None and not leaf.grad.any():  # another rank may have reached it
                leaf.grad = None  # as on one process: an optimizer passes it over

    def _scaled(self, root: torch.Tensor, part: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor | None:
        factor = self._weight_of(root) * self._world_size
        if not part.requires_grad:
            return gradient
        if gradient is not None and isinstance(root, GlobalTensor) and isinstance(root.placement, Shard):
            gradient = part_of(gradient) if isinstance(gradient, GlobalTensor) else gradient[_rows(root.placement)]
        if factor == 1.0:
            return gradient
        return torch.full_like(part, factor) if gradient is None else gradient * factor

    def _with_siblings(self, reached: list[torch.Tensor]) -> list[torch.Tensor]:
        there = {id(leaf) for leaf in reached}
        models = {id(model): model for leaf in reached if (model := self._model(leaf)) is not None}
        rest = {id(p): p for model in models.values() for p in parameters_in(model) if p.requires_grad and id(p) not in there}
        return reached + list(rest.values())

    def _reducer_for(self, leaves: list[torch.Tensor], *, complete: bool, backward: Callable[..., None]) -> tuple[Any, bool]:
        key = tuple(sorted(id(leaf) for leaf in leaves))
        ddp = self._reducers.get(key)
        if ddp is None:
            ddp = self._reducers[key] = _make_reducer(self._ordered(leaves), sparse=self._sparse(), complete=complete)
            if self._world_size > 2 and not ddp.find_unused_parameters:
                _settle_layout(ddp, leaves, backward)
            if len(self._reducers) > MAX_REDUCERS:
                self._reducers.popitem(last=False)
        else:
            self._reducers.move_to_end(key)
        return ddp.reducer, ddp.find_unused_parameters

    def _sparse(self) -> set[int]:
        """Return the ids of the parameters whose gradients are sparse."""
        models = [model for reference in self._models if (model := reference()) is not None]
        layers = (layer for model in models for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag))
        return {id(layer.weight) for layer in layers if layer.sparse}

    def _ordered(self, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return `leaves` in an order that all ranks agree on: that of the known modules, then as reached."""
        first: dict[int, int] = {}
        for reference in self._models:
            model = reference()
            for parameter in model.parameters() if model is not None else ():
                first.setdefault(id(parameter), len(first))
        return sorted(leaves, key=lambda leaf: first.get(id(leaf), len(first)))


class _Hooks:
    """Runs hooks of leaves after the reduction: they are to see the gradient of the global batch, not the rank's part of it."""

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        self._hooked = [leaf for leaf in leaves if leaf._backward_hooks or leaf._post_accumulate_grad_hooks]

    def __enter__(self) -> None:
        self._before: list[tuple[torch.Tensor, list[tuple[dict[Any, Any], dict[Any, Any]]], torch.Tensor | None]] = []
        for leaf in self._hooked:
            both = (leaf._backward_hooks, leaf._post_accumulate_grad_hooks)
            self._before.append((leaf, [(hooks, dict(hooks)) for hooks in both if hooks], leaf.grad))
            for hooks in both:
                if hooks:
                    hooks.clear()
            leaf.grad = None

    def __exit__(self, kind: object, *_: object) -> None:
        for leaf, hooks, before in self._before:
            for registered, copy in hooks:
                registered.update(copy)
            if kind is None:
                self._add(leaf, before)

    @staticmethod
    def _add(leaf: torch.Tensor, before: torch.Tensor | None) -> None:
        found = leaf.grad
        leaf.grad = before
        if found is None:
            return
        for hook in list((leaf._backward_hooks or {}).values()):
            changed = hook(found)
            found = found if changed is None else changed
        leaf.grad = found if before is None else before + found
        for hook in list((leaf._post_accumulate_grad_hooks or {}).values()):
            hook(leaf)


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


def _rows(placement: Shard) -> tuple[slice, ...]:
    return (*(slice(None),) * placement.dim, placement.loaded)


def _make_reducer(leaves: list[torch.Tensor], *, sparse: Container[int], complete: bool) -> DistributedDataParallel:
    # A reducer that looks for unused parameters costs a walk of the graph and one more collective per pass: ranks
    # take the cheaper one where the first pass reaches every leaf on all of them.
    agreed = torch.tensor([0 if complete else 1])
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
    return DistributedDataParallel(
        _Leaves(leaves, sparse),
        init_sync=False,
        gradient_as_bucket_view=True,
        find_unused_parameters=bool(agreed.item()),
    )


def _settle_layout(ddp: Any, leaves: Sequence[torch.Tensor], backward: Callable[..., None]) -> None:
    """Let a new reducer take the layout of its buckets from a backward pass over nothing, not from the first that comes along.

    The order in which more than two ranks' parts are added up depends on the layout. A run that goes on from a snapshot has new
    reducers, and is to add up as before.
    """
    if any(isinstance(module, nn.Embedding) for _, module in ddp.module.named_modules()):
        return  # sparse gradients have no layout
    before = [(leaf, leaf.grad, None if leaf.grad is None else leaf.grad.clone()) for leaf in leaves]
    hooks = [(hooks, dict(hooks)) for leaf in leaves for hooks in (leaf._backward_hooks, leaf._post_accumulate_grad_hooks) if hooks]
    for registered, _ in hooks:
        registered.clear()
    with torch.enable_grad():
        roots = [leaf.reshape(-1)[:1].sum() for leaf in ddp.module.parameters()]
    ddp.reducer.prepare_for_backward([])
    backward(roots, [torch.zeros_like(root) for root in roots])
    for registered, copy in hooks:
        registered.update(copy)
    for leaf, gradient, values in before:
        leaf.grad = gradient
        if gradient is not None and values is not None:
            gradient.copy_(values)  # the reducer has made it a view of its bucket


def leaves_of(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the leaf tensors that require gradients in the graph of `roots`, in the order in which the graph is walked."""
    leaves: dict[int, torch.Tensor] = {}
    seen: set[Any] = set()
    pending: list[Any] = []
    for root in roots:
        if root.grad_fn is not None:
            pending.append(root.grad_fn)
        elif root.requires_grad:
            leaves[id(root)] = root
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        functions = node.next_functions
        if not functions:  # only a node that adds to a leaf has none and a variable
            variable = getattr(node, "variable", None)
            if variable is not None and not isinstance(variable, GlobalTensor):  # a batch that requires gradients is the rank's own
                leaves[id(variable)] = variable
        for following, _ in functions:
            if following is not None and following not in seen:
                pending.append(following)
    return list(leaves.values())

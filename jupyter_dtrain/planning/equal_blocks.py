"""Run equal blocks of a model once on fakes: the first and the last block are measured, and the blocks between them are simulated.

The first block tells what a forward pass of a block keeps, allocates temporarily and computes. The last block, which a backward pass
reaches first, tells the same of the backward pass. A block between returns fakes as the first did, and counts as many bytes and as much
work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .layer_calls import Calls
from .live_bytes import LiveBytes
from .model_cut import blocks_in
from .step_work import Counts, Work

LEAST = 3
"""The smallest number of equal blocks with a block between the first and the last."""
_PLACES = frozenset(("layer_idx", "layer_id", "layer_number", "block_idx", "idx", "index"))
_PLAIN = (bool, int, float, str, type(None))


@dataclass
class _Taken:
    """Cost of one pass of a block: its peak of bytes above those at its start, that peak without gradients, and its work."""

    most: int
    ungraded: int
    work: Counts


@dataclass
class _Block:
    """Measured costs of equal blocks that get equal inputs."""

    forward: _Taken
    hidden: int
    outputs: list[Any]  # of a tensor: shape, strides, dtype, device, requires_grad; otherwise the value
    spec: TreeSpec
    linears: Sequence[Any] = ()
    needed: frozenset[int] = frozenset()  # modules, by their number in the block, whose parameters the backward pass needs
    backward: _Taken | None = None
    graded: list[bool] = field(default_factory=list)  # for each parameter: whether it got a gradient


class EqualBlocks:
    """The equal blocks of a model.

    Parameters
    ----------
    model : nn.Module
    live : LiveBytes
    work : Work
    calls : Calls
    """

    def __init__(self, model: nn.Module, live: LiveBytes, work: Work, calls: Calls) -> None:
        self._live, self._work, self._calls = live, work, calls
        self._known: dict[Any, _Block | None] = {}  # by structure and inputs
        self._kinds: dict[int, tuple[Any, nn.Module]] = {}  # structure and last block of the kind, by block
        by_structure: dict[Any, list[nn.Module]] = {}
        for block in blocks_in(model):
            by_structure.setdefault(_structure(block), []).append(block)
        for structure, blocks in by_structure.items():
            if structure is not None and len(blocks) >= LEAST:
                self._kinds |= {id(block): (structure, blocks[-1]) for block in blocks}
        self._blocks = [block for block in blocks_in(model) if id(block) in self._kinds]

    @contextmanager
    def once(self) -> Iterator[None]:
        """Simulate repeated blocks until the end of the ``with`` block."""
        for block in self._blocks:
            vars(block)["forward"] = partial(self._call, block, block.forward)
        try:
            yield
        finally:
            for block in self._blocks:
                vars(block).pop("forward", None)

    def _call(self, block: nn.Module, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        structure, last = self._kinds[id(block)]
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        is_first_pass = torch.is_grad_enabled() and torch._C._current_graph_task_id() < 0
        if not given or not is_first_pass or not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
            return original(*args, **kwargs)
        key = structure, str(spec), tuple(map(_look, leaves)), tuple([one is other for one in leaves for other in leaves])
        known = self._known.get(key)
        if known is not None and block is not last:
            return tree_unflatten(self._stand(block, known, leaves, given), known.spec)
        if key in self._known and known is None:
            return original(*args, **kwargs)
        return self._follow(block, original, key, leaves, spec)

    def _follow(self, block: nn.Module, original: Callable[..., Any], key: Any, leaves: Sequence[Any], spec: TreeSpec) -> Any:
        """Run a block and measure its cost."""
        self._known.setdefault(key, None)
        given = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad}
        entered = dict(zip(given, _edge(partial(self._end, block, key), *given.values()), strict=True))
        args, kwargs = tree_unflatten([entered.get(id(leaf), leaf) for leaf in leaves], spec)
        before, num_linears = self._live.bytes_now(), len(self._calls.linears)
        begun = self._begin()
        returned = original(*args, **kwargs)
        taken = self._taken(begun)
        outputs, out_spec = tree_flatten(returned)
        tensors = [one for one in outputs if isinstance(one, torch.Tensor)]
        there = {leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, torch.Tensor)}
        storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}
        is_usual = all(isinstance(one, (torch.Tensor, *_PLAIN)) for one in outputs) and len(storages) == len(tensors)
        if not is_usual or there & {*storages} or not any(one.requires_grad for one in tensors):
            return returned
        if self._known[key] is None:
            self._known[key] = _Block(
                taken,
                max(0, self._live.bytes_now() - before - sum(storages.values())),
                [_look(one) for one in outputs],
                out_spec,
                self._calls.linears[num_linears:],
                frozenset(number for number, part in enumerate(block.modules()) if self._calls.needs(part)),
            )
        graded = {id(one): one for one in tensors if one.requires_grad}
        passed = dict(zip(graded, _edge(partial(self._begin_back, block), *graded.values()), strict=True))
        return tree_unflatten([passed.get(id(one), one) for one in outputs], out_spec)

    def _begin(self) -> tuple[int, int, Counts]:
        return *self._live.begin(), self._work.counts

    def _taken(self, begun: tuple[int, int, Counts]) -> _Taken:
        most, ungraded = self._live.end()
        return _Taken(most - begun[0], ungraded - begun[1], self._work.counts.since(begun[2]))

    def _begin_back(self, block: nn.Module) -> None:
        self._back = block, self._begin()

    def _end(self, block: nn.Module, key: Any) -> None:
        of, begun = self._back
        taken, known = self._taken(begun), self._known[key]
        if of is not block:
            raise RuntimeError("a backward pass came to blocks in another order")
        if known is not None and known.backward is None:
            known.backward = taken
            known.graded = [parameter.grad is not None for parameter in block.parameters()]

    def _stand(self, block: nn.Module, known: _Block, leaves: Sequence[Any], given: Sequence[torch.Tensor]) -> list[Any]:
        """Return the outputs of a block that is equal to a measured one, without running it."""
        self._calls.repeat(known.linears, [part for number, part in enumerate(block.modules()) if number in known.needed])
        counts = self._work.counts
        self._live.spike(known.forward.most, known.forward.ungraded)
        found = list(_standing(partial(self._back_through, block, known), known, leaves, *given))
        self._work.counts = counts.plus(known.forward.work)
        return [found.pop(0) if isinstance(one, tuple) else one for one in known.outputs]

    def _back_through(self, block: nn.Module, known: _Block, made: Callable[[], list[Any]]) -> list[Any]:
        taken = known.backward
        if taken is None:
            raise RuntimeError("a backward pass came to a block before the last one of its kind")
        counts = self._work.counts
        self._live.spike(taken.most, taken.ungraded)
        gradients = made()
        for parameter, is_graded in zip(block.parameters(), known.graded, strict=True):
            if is_graded and parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
                self._live.add_gradient(parameter.grad)
        self._work.counts = counts.plus(taken.work)
        return gradients


class _Edge(torch.autograd.Function):
    """Identity that calls `tell` when a backward pass reaches it."""

    @staticmethod
    def forward(ctx: Any, tell: Callable[[], None], *tensors: torch.Tensor) -> Any:
        ctx.tell = tell
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.tell()
        return None, *gradients


class _Standing(torch.autograd.Function):
    """A simulated block: allocates what the block keeps, and returns fakes as it does."""

    @staticmethod
    def forward(ctx: Any, back: Callable[..., Any], known: _Block, leaves: Sequence[Any], *given: torch.Tensor) -> Any:
        ctx.back, ctx.leaves = back, leaves
        ctx.kept = torch.empty(known.hidden, dtype=torch.uint8, device=given[0].device)
        ctx.like = given
        ctx.set_materialize_grads(False)
        looks = [one for one in known.outputs if isinstance(one, tuple)]
        made = [torch.empty_strided(shape, stride, dtype=dtype, device=device) for shape, stride, dtype, device, _ in looks]
        ctx.mark_non_differentiable(*[one for one, look in zip(made, looks, strict=True) if not look[-1]])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        def made() -> list[torch.Tensor]:
            ctx.kept = ctx.leaves = None
            return [torch.empty_like(one) for one in ctx.like]

        found = ctx.back(made)
        ctx.like = None
        return None, None, None, *found


_edge: Callable[..., Any] = _Edge.apply
_standing: Callable[..., Any] = _Standing.apply


def _look(leaf: Any) -> Any:
    """Return the properties of a tensor that determine its cost; return other values as they are."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad


def _structure(block: nn.Module) -> Any:
    """Return a key that is equal for equal blocks; ``None`` if a block has hooks or a `forward` of its own."""
    found: list[Any] = []
    for name, part in block.named_modules():
        kept = vars(part)
        if "forward" in kept or part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
            return None
        plain = tuple((key, value) for key, value in kept.items() if isinstance(value, _PLAIN) and key not in _PLACES)
        tensors = [*part._parameters.items(), *part._buffers.items()]
        found.append((name, type(part), plain, tuple((key, None if one is None else _look(one)) for key, one in tensors)))
    return tuple(found)

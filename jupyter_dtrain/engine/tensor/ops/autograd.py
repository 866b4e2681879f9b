"""Rules of gradients: ``.grad``, ``backward`` and ``torch.autograd.grad`` of global tensors."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ..functional_collectives import nothing_of, weigh
from ..graph_placement import start_at
from ..hooks_aside import reached_instead, roots_above
from ..placement_types import GlobalTensor, Partial, Placement, Shard, from_local, source_of, to_local
from .dispatch import Rules
from .operands import at


def gradient(rules: Rules, func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """``.grad`` of a global tensor, which becomes global too. Backward passes scale it; the scale is removed here."""
    tensor = args[0]
    source = source_of(tensor)
    with torch._C.DisableTorchFunctionSubclass():
        found = source.grad
        if found is None or isinstance(found, GlobalTensor):
            return found
        # The cell may change the gradient in place, so it replaces the raw one in `.grad`.
        source.grad = gradient_of(rules, found, tensor.placement)
        rules.read_gradients.append((source, tensor.placement))
        return source.grad


def set_gradient(rules: Rules, tensor: GlobalTensor, placement: Shard, part: torch.Tensor) -> None:
    """Set ``.grad`` of a shard to the rank's part of what the cell assigns; it is treated like one that the cell has read."""
    source = source_of(tensor)
    with torch._C.DisableTorchFunctionSubclass():
        source.grad = part if isinstance(part, GlobalTensor) else from_local(part.clone(), placement)
    rules.read_gradients.append((source, placement))


@contextmanager
def read_gradients_followed(rules: Rules) -> Iterator[None]:
    """Let a backward pass accumulate into gradients that the cell has read.

    Within the ``with`` block they are raw gradients again: the rank's part, scaled. After it, the object that the cell holds has the sum.
    Gradients that replicated tensors retain become partial sums over the ranks.
    """
    retaining = [(tensor, tensor.grad) for reference in rules.retaining if (tensor := reference()) is not None]
    rules.retaining = [weakref.ref(tensor) for tensor, _ in retaining]
    read, rules.read_gradients = rules.read_gradients, []
    lent: list[tuple[torch.Tensor, Placement, GlobalTensor, torch.Tensor, int]] = []
    with torch._C.DisableTorchFunctionSubclass():
        for source, placement in read:
            gradient = source.grad
            if isinstance(gradient, GlobalTensor):
                raw = source.grad = part_of_gradient(rules, gradient, placement)
                lent.append((source, placement, gradient, raw, raw._version))
        for tensor, _ in retaining:
            tensor.grad = None
    try:
        yield
    finally:
        for tensor, before in retaining:
            found = None if tensor.grad is None else gradient_of(rules, tensor.grad, None)
            with torch._C._EnableTorchFunction():
                tensor.grad = before if found is None else found if before is None else before + found
        with torch._C.DisableTorchFunctionSubclass():
            for source, placement, gradient, raw, version in lent:
                if source.grad is raw:  # else a pass with `create_graph=True` has replaced it
                    _give_back(rules, source, placement, gradient, changed=raw._version != version)


def _give_back(rules: Rules, source: torch.Tensor, placement: Placement, gradient: GlobalTensor, *, changed: bool) -> None:
    """Set `gradient`, which the cell has read, as ``source.grad`` again, with the values that a pass has accumulated."""
    if changed:
        assert source.grad is not None
        now = gradient_of(rules, source.grad, placement)
        if gradient.placement != now.placement or gradient.shape != now.shape:  # the cell has reshaped it in place
            return
        with torch.no_grad():
            gradient.copy_(now)
    source.grad = gradient
    rules.read_gradients.append((source, placement))


def in_graph(_rules: Rules, func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """Return ``is_leaf`` or ``retains_grad`` of a global tensor; of a model's result those of the plain tensor behind it."""
    source = source_of(args[0])
    with torch._C.DisableTorchFunctionSubclass():
        return func(source)


def gradient_of(rules: Rules, found: torch.Tensor, placement: Placement | None) -> GlobalTensor:
    """Return the gradient of a tensor as a global tensor.

    Parameters
    ----------
    rules : Rules
    found : Tensor
        The rank's gradient, times ``gradient_scale``: ``(b, …)`` of a shard, otherwise of the tensor's shape.
    placement : Placement, optional
        Of the tensor. ``None``: the tensor is replicated, and each rank has the gradient of its own part of the batch.
    """
    part = to_local(found) / rules.gradient_scale
    if isinstance(placement, Shard):
        return from_local(part, placement)
    if isinstance(placement, Partial) and placement.weight is None:
        return from_local(part, Partial(1.0 / rules.world_size))  # each rank has the full gradient: a mean with equal weights
    return from_local(part, Partial())


def _behind_each_other(rules: Rules, found: torch.Tensor) -> torch.Tensor:
    """Return the sum over ranks of a sparse gradient: the ranks' entries concatenated.

    A collective. `found` is the rank's gradient times ``gradient_scale``.
    """
    of_ranks = rules.exchange.objects((found._indices(), found._values().detach() / rules.gradient_scale))
    indices, values = (torch.cat([of_rank[part] for of_rank in of_ranks], 1 - part) for part in (0, 1))
    return torch.sparse_coo_tensor(indices, values, found.shape, device=found.device, check_invariants=False)


def part_of_gradient(rules: Rules, gradient: torch.Tensor, placement: Placement | None) -> torch.Tensor:
    """Return the rank's raw part of a gradient, ``(b, …)`` of a shard: the inverse of :func:`gradient_of`. A collective in general."""
    if isinstance(placement, Shard):
        if isinstance(gradient, GlobalTensor) and gradient.placement == placement:
            part = to_local(gradient)
        else:
            part = rules.full_tensor(gradient)[at(placement.dim, placement.loaded)]
        return part * (rules.gradient_scale if placement.counts else 0.0)
    whole: torch.Tensor = rules.full_tensor(gradient)
    if placement is None:
        return whole * (rules.gradient_scale / rules.world_size)
    return whole * (rules.gradient_scale * (1.0 if placement.weight is None else placement.weight))


def backward(_: Rules, _func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``loss.backward()``: calls ``torch.autograd.backward``, whose replacement (`backward.gradient_sync`) can start from a part."""
    names = ("gradient", "retain_graph", "create_graph", "inputs")
    options = {**dict(zip(names, args[1:], strict=False)), **kwargs}
    torch.autograd.backward(
        args[0], options.get("gradient"), options.get("retain_graph"), options.get("create_graph", False), inputs=options.get("inputs")
    )


def grad(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.autograd.grad``: gradients of shards are shards, gradients of replicated tensors are partial sums."""
    names = ("outputs", "inputs", "grad_outputs")
    rules.take_back_lent()
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    outputs, inputs = _sequence(given.pop("outputs")), _sequence(given.pop("inputs"))
    starts = given.pop("grad_outputs", None)
    batched = bool(given.get("is_grads_batched"))
    starts = [None] * len(outputs) if starts is None else _sequence(starts)
    starts = [
        None if start is None else start_at(output, start, rules.full_tensor, batched=batched)
        for output, start in zip(outputs, starts, strict=True)
    ]
    hooked = [] if batched else _with_hooks(inputs)
    with read_gradients_followed(rules), torch._C.DisableTorchFunctionSubclass(), reached_instead(hooked) as reached:
        # Scaled as in every backward pass, as intermediate tensors may retain their gradients.
        scale = rules.gradient_scale
        local_starts = [_part_of_start(rules, output, start) * scale for output, start in zip(outputs, starts, strict=True)]
        found = func(outputs, [source_of(tensor) for tensor in inputs], local_starts, **given)
    placements = [tensor.placement if isinstance(tensor, GlobalTensor) else None for tensor in inputs]
    if batched:
        placements = [replace(p, dim=p.dim + 1) if isinstance(p, Shard) else p for p in placements]
    results = [None if g is None else _found(rules, g, placement) for g, placement in zip(found, placements, strict=True)]
    if reached:
        wholes = {id(leaf): result for leaf, result in zip(inputs, results, strict=True)}
        starts = [rules.full_tensor(wholes[id(leaf)]) for leaf in reached]
        with torch._C._EnableTorchFunction():
            seen = func(roots_above(reached), reached, starts, create_graph=given.get("create_graph", False))
        changed = dict(zip(map(id, reached), seen, strict=True))
        results = [changed.get(id(leaf), result) for leaf, result in zip(inputs, results, strict=True)]
    return tuple(results)


def _with_hooks(inputs: list[Any]) -> list[torch.Tensor]:
    """Return the replicated leaf tensors among `inputs`, each once, that have hooks: these must get gradients summed over the ranks."""
    leaves = {id(tensor): tensor for tensor in inputs if isinstance(tensor, torch.Tensor) and not isinstance(tensor, GlobalTensor)}
    return [leaf for leaf in leaves.values() if leaf.is_leaf and leaf._backward_hooks]


def _found(rules: Rules, found: torch.Tensor, placement: Placement | None) -> torch.Tensor:
    if found.layout == torch.sparse_coo and placement is None and not found.requires_grad:
        return _behind_each_other(rules, found)
    return gradient_of(rules, found, placement)


def _sequence(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) or value is None else list(value)


def _part_of_start(rules: Rules, output: torch.Tensor, start: torch.Tensor | None) -> torch.Tensor:
    """Return the rank's part of the gradient `start` of `output`, ones by default."""
    if start is None:
        start = torch.ones_like(output)
    if not isinstance(output, GlobalTensor):
        return start / rules.world_size  # replicated: each rank starts with an equal part, so that the results sum up
    placement = output.placement
    if isinstance(placement, Partial):
        return start if placement.weight is None else weigh(start, placement.weight)
    return start if placement.counts else nothing_of(start)

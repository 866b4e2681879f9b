"""Run optimizer steps on fake tensors to measure their state, peak memory and work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from .live_bytes import Lap, LiveBytes
from .step_work import Work

STEPS = 2  # the first makes the optimizer's state, the second begins with it
_ONE_BY_ONE = tuple(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "ASGD", "RMSprop", "Rprop")
)
"""Optimizers that update parameters independently of each other."""


class Updated(NamedTuple):
    """Bytes of state, peak bytes, bytes read and written, number of operations, and whether parameters are updated one by one."""

    state: int
    most: int
    traffic: int
    operations: int
    one_by_one: bool


def update(model: nn.Module, optimizers: Sequence[Optimizer]) -> Updated:
    """Take two steps and measure the second one, as the first makes the optimizer state.

    Where parameters are updated independently, those of one shape cost the same. So one of them is updated for all.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    work = Work()
    live = LiveBytes(work)
    for value in (*model.parameters(), *(parameter.grad for parameter in parameters)):
        live.add(value)
    stepped: list[nn.Parameter] = []
    before = after = Lap(0, 0, 0)
    with ExitStack() as stack:
        for optimizer in optimizers:
            alike = _alike(optimizer)
            if alike is None:
                stepped += [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
                continue
            firsts = [ones[0] for ones in alike]
            stepped += firsts
            stack.enter_context(_with_alone(optimizer, firsts))
            stack.callback(_spread, optimizer, alike)
        with live:
            for _ in range(STEPS):
                before = live.lap()
                work.lap()
                for optimizer in optimizers:
                    optimizer.step()
                after = live.lap()
    done = work.lap()
    size, rest = (sum(map(num_bytes, ones)) for ones in (stepped, parameters))
    return Updated(
        state=sum(num_bytes(leaf) for one in optimizers for leaf in tree_leaves([*one.state.values()]) if torch.is_tensor(leaf)),
        most=max(0, after.most - before.now),
        traffic=done.traffic * rest // max(size, 1),
        operations=done.operations * len(parameters) // max(len(stepped), 1),
        one_by_one=all(_alike(optimizer) is not None for optimizer in optimizers),
    )


def _alike(optimizer: Optimizer) -> list[list[nn.Parameter]] | None:
    """Return parameters grouped by param group and layout, if each is updated independently of the others; ``None`` if not."""
    if type(optimizer) not in _ONE_BY_ONE or any(group.get("foreach") or group.get("fused") for group in optimizer.param_groups):
        return None
    found: dict[Any, list[nn.Parameter]] = {}
    for index, group in enumerate(optimizer.param_groups):
        for one in group["params"]:
            if one.device.type != "cpu" and group.get("foreach") is None:  # `foreach` is the default there: one operation for all
                return None
            if one.grad is not None:
                found.setdefault((index, one.shape, one.stride(), one.dtype, one.grad.layout), []).append(one)
    return [*found.values()]


def _spread(optimizer: Optimizer, alike: Sequence[Sequence[nn.Parameter]]) -> None:
    """Copy the state of the first parameter of each group to the other ones of the group."""
    for first, *others in alike:
        if first in optimizer.state:
            optimizer.state.update(dict.fromkeys(others, optimizer.state[first]))


@contextmanager
def _with_alone(optimizer: Optimizer, params: Sequence[nn.Parameter]) -> Iterator[None]:
    """Restrict an optimizer to `params` until the end of the ``with`` block."""
    before, wanted = [group["params"] for group in optimizer.param_groups], set(map(id, params))
    for group in optimizer.param_groups:
        group["params"] = [one for one in group["params"] if id(one) in wanted]
    try:
        yield
    finally:
        for group, all_of_it in zip(optimizer.param_groups, before, strict=True):
            group["params"] = all_of_it


def num_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()

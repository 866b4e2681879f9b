"""Optimizer steps on the rows of parameters in the place of the full parameters."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .parameter_shard import ParameterShard
from .sharded_rows import Came, SharedRows, quiet


@dataclass
class KeptState:
    """The sharded state of an optimizer, by the number of the parameter and the key of the state.

    Attributes
    ----------
    rows : dict
        Where this rank's are.
    old : dict
        The notebook's tensors, for which these stand.
    came : dict
        What these held.
    whole : dict
        What was put together when the cell read it: an array that it was read by is gone, or holds it.
    """

    rows: dict[tuple[int, Any], SharedRows] = field(default_factory=dict)
    old: dict[tuple[int, Any], torch.Tensor] = field(default_factory=dict)
    came: dict[tuple[int, Any], Came] = field(default_factory=dict)
    whole: dict[tuple[int, Any], weakref.ref[torch.Tensor]] = field(default_factory=dict)

    def put_together(self, number: int, key: object, full: torch.Tensor) -> None:
        """Note the full tensor that was gathered of a state."""
        self.whole[number, key] = weakref.ref(full)

    def is_put_together(self, number: int, key: object, value: torch.Tensor) -> bool:
        """Return whether `value` is that full tensor."""
        made = self.whole.get((number, key))
        return made is not None and made() is value


@contextmanager
def params_alone(optimizer: Optimizer, params: Sequence[torch.Tensor] | None) -> Iterator[None]:
    """Restrict the param groups of an optimizer to `params`, if any are given, in the ``with`` block."""
    groups = optimizer.param_groups
    before = [group["params"] for group in groups]
    if params is not None:
        wanted = set(map(id, params))
        for group, all_of_it in zip(groups, before, strict=True):
            group["params"] = [parameter for parameter in all_of_it if id(parameter) in wanted]
        optimizer.param_groups = [group for group in groups if group["params"]]
    try:
        yield
    finally:
        for group, all_of_it in zip(groups, before, strict=True):
            group["params"] = all_of_it
        optimizer.param_groups = groups


@contextmanager
def rows_in_place(shards: list[ParameterShard]) -> Iterator[None]:
    """Replace parameters and their gradients by this rank's rows in the ``with`` block."""
    before: list[tuple[ParameterShard, torch.Tensor, torch.Tensor | None]] = []
    try:
        with quiet(), torch.no_grad():
            for shard in shards:
                parameter = shard.parameter
                gradient = parameter.grad
                before.append((shard, parameter.data, gradient))
                rows = shard.gradient if shard.gradient is not None else None if gradient is None else gradient.detach()[shard.own]
                parameter.grad = None
                parameter.__class__ = nn.Parameter
                parameter.data = shard.rows
                parameter.grad = rows
        yield
    finally:
        with quiet(), torch.no_grad():
            for shard, numbers, gradient in before:
                parameter = shard.parameter
                parameter.grad = None
                parameter.data = numbers
                parameter.grad = gradient
                parameter.__class__ = shard.kind()


def num_lists(value: object, objects: Sequence[object]) -> int:
    """Return how many lists of all `objects`, among them `value`, exist: code that compares them and code that moves them have one each."""
    found = [holder for holder in gc.get_referrers(value) if type(holder) is list and len(holder) >= len(objects)]
    return sum(any(one is objects[0] for one in holder) and any(one is objects[-1] for one in holder) for holder in found)


def is_state_of(value: object, shape: tuple[int, ...]) -> bool:
    """Return whether `value` is optimizer state with one element for each of a parameter of this shape."""
    return isinstance(value, torch.Tensor) and tuple(value.shape) == shape

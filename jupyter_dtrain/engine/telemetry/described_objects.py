"""Describes an optimizer, a model, a scheduler or a loader for the record of a run, in plain values."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, RandomSampler

from ...protocol import Value
from ..module_tree import parameters_in

MAX_TEXT = 200
"""Most characters of a text value."""
_EXACT = 1 << 53  # whole numbers beyond it are rounded by JavaScript
_NOT_HYPER = frozenset({"params", "param_names"})
_NOT_OF_SCHEDULERS = frozenset({"self", "optimizer", "last_epoch", "schedulers", "verbose"})


def plain(value: Any) -> Value:
    """Return a value for the record: numbers, strings and booleans as they are, anything else as a short string."""
    if isinstance(value, torch.Tensor) or type(value).__module__ == "numpy":
        value = value.item() if getattr(value, "ndim", None) == 0 or getattr(value, "size", None) == 1 else value
        if isinstance(value, torch.Tensor):
            value = value.item() if value.numel() == 1 else f"tensor of shape {tuple(value.shape)}"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value) if abs(int(value)) < _EXACT else str(int(value))
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, tuple | list):
        inner = [plain(part) for part in value[: MAX_TEXT // 2]]
        text = repr(tuple(inner) if isinstance(value, tuple) else inner)
    elif isinstance(value, type) or inspect.isroutine(value):
        text = value.__qualname__
    else:
        text = str(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def optimizer_facts(optimizer: Optimizer) -> dict[str, Value]:
    """Describe an optimizer: its class, and the settings of its param groups."""
    groups = [{name: plain(value) for name, value in group.items() if name not in _NOT_HYPER} for group in optimizer.param_groups]
    facts: dict[str, Value] = {"optimizer": type(optimizer).__name__}
    for name in dict.fromkeys(name for group in groups for name in group):
        values = [group.get(name) for group in groups]
        if name == "initial_lr" and values == [group.get("lr") for group in groups]:
            continue
        if any(value is not None and value is not False for value in values):  # what is off needs no line
            facts[f"optimizer.{name}"] = values[0] if len(set(map(repr, values))) == 1 else plain(values)
    if len(groups) > 1:
        facts["optimizer.groups"] = len(groups)
    return facts


def model_facts(module: nn.Module) -> dict[str, Value]:
    """Describe a model: its class and size."""
    inner = getattr(module, "_orig_mod", getattr(module, "module", None))  # of one that is compiled, or wrapped by DDP
    parameters = [p for p in parameters_in(module) if not isinstance(p, nn.UninitializedParameter)]
    total, trained = (sum(p.numel() for p in parameters if p.requires_grad or all_) for all_ in (True, False))
    facts: dict[str, Value] = {"model": type(inner if isinstance(inner, nn.Module) else module).__name__, "model.parameters": total}
    return facts if trained == total else {**facts, "model.trained_parameters": trained}


def scheduler_facts(scheduler: LRScheduler, prefix: str = "scheduler") -> dict[str, Value]:
    """Describe a scheduler: its class, and its arguments."""
    facts: dict[str, Value] = {prefix: type(scheduler).__name__}
    for name in inspect.signature(type(scheduler).__init__).parameters:
        value = getattr(scheduler, name, getattr(scheduler, f"_{name}", None))
        if name == "milestones" and isinstance(value, Mapping):  # a counter of them
            value = sorted(value)
        if name not in _NOT_OF_SCHEDULERS and value is not None and value is not False and not callable(value):
            facts[f"{prefix}.{name}"] = plain(value)
    for number, part in enumerate(getattr(scheduler, "_schedulers", ()), start=1):
        facts |= scheduler_facts(part, f"{prefix}.{number}")
    return facts


def loader_facts(loader: DataLoader[Any], together: int) -> dict[str, Value]:
    """Describe a loader: its batches, of which `together` make one step."""
    size = loader.batch_size if loader.batch_size is not None else getattr(loader.batch_sampler, "batch_size", None)
    facts: dict[str, Value] = {"batch_size": size * together if isinstance(size, int) else None}
    facts["dataset"] = type(loader.dataset).__name__
    try:
        facts["dataset.size"] = len(loader.dataset)  # type: ignore[arg-type]  # not all have one
    except (TypeError, NotImplementedError):
        pass
    if isinstance(loader.sampler, RandomSampler):
        facts["shuffle"] = True
    if loader.drop_last:
        facts["drop_last"] = True
    if loader.generator is not None:
        facts["loader.seed"] = plain(loader.generator.initial_seed())
    return {name: value for name, value in facts.items() if value is not None}

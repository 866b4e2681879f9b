"""Which parameters can be sharded. The others are replicated, and a note to the user says why."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from ...code_inspection import call_uses
from ...module_tree import modules_in
from .aliased_memory import NOT_PYTORCHS, OwnMemory, has_others
from .sharded_rows import quiet

_UNCOUNTED = frozenset(("data", "numpy"))  # names of what a weight can be written by, and no version counter of it changes
MAY_WRITE = "the code of the model may write to its weights"
SCRIPTED = "scripted code reads them past Python"


def may_write_uncounted(model: nn.Module) -> bool:
    """Return whether a call of `model` may write to weights past PyTorch's version counters. What these count is followed."""
    return any(call_uses(part.forward, lambda _, names: not _UNCOUNTED.isdisjoint(names)) for part in modules_in(model))


def why_replicated(module: nn.Module, *, may_write: Callable[[nn.Module], bool] | None = may_write_uncounted) -> dict[int, str]:
    """Return why parameters of `module` are replicated, by their ``id``.

    `may_write` returns whether a model may write to its weights in a way that is not followed; ``None``: all are followed.
    """
    found: dict[int, str] = {}
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):
            found.update((id(p), SCRIPTED) for p in part.parameters())
        elif is_compiled(part):
            found.update((id(p), "the model is compiled") for p in part.parameters())
        elif isinstance(part, nn.Embedding | nn.EmbeddingBag) and (part.sparse or part.max_norm is not None):
            found[id(part.weight)] = "their gradients are sparse, or lookups write to them"
    if may_write is not None and may_write(module):
        found.update((id(p), MAY_WRITE) for p in module.parameters())
    return found


def is_compiled(part: nn.Module) -> bool:
    """Return whether ``torch.compile`` or ``Module.compile`` has compiled a module."""
    return hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None


def why_not(parameter: nn.Parameter, world_size: int, *, homes: Collection[int], own: OwnMemory, dim: int = 0) -> str | None:
    """Return why a parameter is replicated, ``None`` if it is sharded; empty if the user need not be told.

    What came with memory in `homes` has one who holds that. What `own` knows has nobody. `dim` is that along which it would be sharded.
    """
    kind: Any = type(parameter)
    if parameter.shape[dim] < world_size:
        return ""
    if kind is not nn.Parameter or parameter.layout != torch.strided or not parameter.is_floating_point():
        return "they are of another kind than usual"
    if parameter.device.type != "cpu":
        return "they are on a device"
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        return "they have hooks"
    if not parameter.is_contiguous() or parameter.untyped_storage().nbytes() != parameter.nbytes or not parameter.is_leaf:
        return "they share memory with something else"
    with quiet():
        memory = parameter.untyped_storage()
        if has_others(memory, homes):
            return "something else holds their numbers"
        if memory._cdata not in homes and own.is_arrays(memory):
            return NOT_PYTORCHS
        if parameter.grad is not None and (type(parameter.grad) is not torch.Tensor or parameter.grad.layout != torch.strided):
            return "their gradients are of another kind than usual"
    return None

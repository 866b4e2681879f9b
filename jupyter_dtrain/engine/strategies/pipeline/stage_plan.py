"""Splits chains of modules into parts, and detects modules that write to their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ...identity_map import IdentityMap


def versions(values: Any) -> list[int]:
    """Return the version counters of the tensors in `values`."""
    if isinstance(values, torch.Tensor):
        return [] if values.is_inference() else [values._version]
    if isinstance(values, dict):
        values = [*values.values()]
    return [version for value in values for version in versions(value)] if isinstance(values, list | tuple) else []


def is_chain(module: nn.Module) -> bool:
    """Return whether a module calls its parts in sequence."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def modules_in_chain(module: nn.Module, atoms: IdentityMap[int]) -> Iterator[nn.Module]:
    """Yield the parts of a chain and of nested chains. Atoms are not split."""
    for part in module._modules.values():  # not `children()`, which yields a repeated module once
        if part is not None and is_chain(part) and atoms.get(part) is None:
            yield from modules_in_chain(part, atoms)
        elif part is not None:
            yield part

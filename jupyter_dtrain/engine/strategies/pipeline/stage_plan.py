"""What stages are of: the parts of chains of modules, and whether these write to what they are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ...module_tree import IdentityMap


def versions(values: Any) -> list[int]:
    """Return how often tensors in `values` have been written to."""
    if isinstance(values, torch.Tensor):
        return [] if values.is_inference() else [values._version]
    if isinstance(values, dict):
        values = [*values.values()]
    return [version for value in values for version in versions(value)] if isinstance(values, list | tuple) else []


def is_chain(module: nn.Module) -> bool:
    """Return whether a module calls its parts one after the other."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def modules_in_chain(module: nn.Module, atoms: IdentityMap[int]) -> Iterator[nn.Module]:
    """Yield the parts of a chain, and those of the chains in it, up to atoms."""
    for part in module._modules.values():  # one module may be there twice
        if part is not None and is_chain(part) and atoms.get(part) is None:
            yield from modules_in_chain(part, atoms)
        elif part is not None:
            yield part

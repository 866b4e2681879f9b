"""Which rank has which stage of a model: its modules cut into parts of like size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ...forward.activation_checkpoint import blocks_in
from ...module_tree import IdentityMap


def atoms_of(module: nn.Module) -> list[nn.Module]:
    """Return what is computed in one piece: repeated blocks, and layers outside of these, in the order in which the model has them."""
    blocks = {id(block) for block in blocks_in(module)}
    found: dict[int, nn.Module] = {}

    def walk(part: nn.Module) -> None:
        children = [child for child in part._modules.values() if child is not None]
        if id(part) in blocks or not children:
            found.setdefault(id(part), part)
            return
        for child in children:
            walk(child)

    walk(module)
    return list(found.values())


def owners_of(module: nn.Module, num_stages: int) -> dict[int, int]:
    """Return the stage of each parameter by its ``id``: so many stages, of equal bytes."""
    atoms = [[*atom.parameters()] for atom in atoms_of(module)]
    known: dict[int, int] = {}
    groups: list[list[nn.Parameter]] = []
    for parameters in [*atoms, *([p] for p in module.parameters())]:  # the latter for those of the model's own code
        new = [p for p in parameters if known.setdefault(id(p), len(groups)) == len(groups)]
        if new:
            groups.append(new)
    sizes = [sum(p.nbytes for p in group) for group in groups]
    return {id(p): stage for group, stage in zip(groups, cut(sizes, num_stages), strict=True) for p in group}


def cut(sizes: Sequence[int], num_parts: int) -> list[int]:
    """Return in which part each of `sizes` is: one part after the other, the largest as small as it can be, none empty that need not be."""
    low, high = max(sizes, default=0), sum(sizes)
    while low < high:
        most = (low + high) // 2
        if _parts(sizes, num_parts, most)[-1] < num_parts:
            high = most
        else:
            low = most + 1
    return _parts(sizes, num_parts, high)


def _parts(sizes: Sequence[int], num_parts: int, most: int) -> list[int]:
    """Fill one part after the other with `most` at the most."""
    found: list[int] = []
    part, total = 0, 0
    for index, size in enumerate(sizes):
        if found and (total + size > most or len(sizes) - index < num_parts - part):
            part, total = part + 1, 0
        total += size
        found.append(part)
    return found


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

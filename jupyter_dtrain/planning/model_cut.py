"""Cut a model into pipeline stages of similar size, from its blocks and the layers beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def blocks_in(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of `model`: modules with layers that are in a list beside others of their class.

    Of nested blocks it returns the outer ones, but it looks into lists of blocks.
    """
    found: dict[int, nn.Module] = {}

    def look(module: nn.Module, *, in_block: bool) -> bool:
        """Search `module`, and return whether it contains blocks."""
        children = [child for child in module._modules.values() if child is not None]
        counts = Counter(type(child) for child in children)
        any_found = False
        for child in children:
            repeated = isinstance(module, LISTS) and counts[type(child)] > 1 and _has_layers(child)
            is_block = repeated and not isinstance(child, LISTS) and not in_block
            if is_block:
                found[id(child)] = child
            below = look(child, in_block=in_block or is_block)
            if repeated and not is_block and not below and not in_block:
                found[id(child)] = child
                below = True
            any_found |= is_block or below
        return any_found

    look(model, in_block=False)
    return list(found.values())


def _has_layers(module: nn.Module) -> bool:
    is_called = not isinstance(module, nn.ModuleList | nn.ModuleDict)
    return is_called and bool(module._modules) and next(iter(module.parameters()), None) is not None


def atoms_of(module: nn.Module) -> list[nn.Module]:
    """Return the modules that are computed in one piece: repeated blocks, and layers outside of them, in the model's order."""
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


def groups_of(module: nn.Module) -> list[list[nn.Parameter]]:
    """Return the parameters of each atom that no earlier atom has, and those of the model's own code one by one."""
    atoms = [[*atom.parameters()] for atom in atoms_of(module)]
    known: dict[int, int] = {}
    groups: list[list[nn.Parameter]] = []
    for parameters in [*atoms, *([p] for p in module.parameters())]:  # the latter for those of the model's own code
        new = [p for p in parameters if known.setdefault(id(p), len(groups)) == len(groups)]
        if new:
            groups.append(new)
    return groups


def owners_of(module: nn.Module, num_stages: int) -> dict[int, int]:
    """Return the stage of each parameter by its ``id``, for `num_stages` stages of similar bytes."""
    groups = groups_of(module)
    sizes = [sum(p.nbytes for p in group) for group in groups]
    return {id(p): stage for group, stage in zip(groups, cut(sizes, num_stages), strict=True) for p in group}


def cut(sizes: Sequence[int], num_parts: int) -> list[int]:
    """Return the part of each of `sizes`: consecutive parts, with the largest as small as possible, and no part empty if avoidable.

    If a single size exceeds what each part would have, the largest of the other parts is as small as possible.
    """
    low, high = 0, sum(sizes)
    while low < high:
        most = (low + high) // 2
        if _parts(sizes, num_parts, most)[-1] < num_parts:
            high = most
        else:
            low = most + 1
    return _parts(sizes, num_parts, high)


def _parts(sizes: Sequence[int], num_parts: int, most: int) -> list[int]:
    """Fill one part after the other with up to `most`; a larger size has a part of its own."""
    found: list[int] = []
    part, total = 0, 0
    for index, size in enumerate(sizes):
        if found and (total + size > most or len(sizes) - index < num_parts - part):
            part, total = part + 1, 0
        total += size
        found.append(part)
    return found

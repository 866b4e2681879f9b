"""Cut a model into pipeline stages of similar work and size, from its blocks and the layers beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
TABLES = (nn.Embedding, nn.EmbeddingBag)
MORE_BYTES = 1.25
"""Largest bytes of a stage that is cut by work, relative to those of the largest stage that is cut by bytes."""
LESS_WORK = 0.95
"""Largest work of a stage that is worth this, relative to that of the stages that are cut by bytes."""


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
    """Return the stage of each parameter by its ``id``, for `num_stages` stages of similar work and bytes."""
    groups = groups_of(module)
    sizes = [sum(p.nbytes for p in group) for group in groups]
    stages = cut_into_stages(sizes, work_of(module, groups), num_stages)
    return {id(p): stage for group, stage in zip(groups, stages, strict=True) for p in group}


def work_of(module: nn.Module, groups: Sequence[Sequence[nn.Parameter]]) -> list[int]:
    """Return the bytes in each group of parameters that a pass computes with.

    Of a lookup table a pass reads some rows. A table that another layer has too (tied weights) is multiplied by.
    """
    tables, others = set[int](), set[int]()
    for part in module.modules():
        (tables if isinstance(part, TABLES) else others).update(id(p) for p in part._parameters.values() if p is not None)
    return [sum(p.nbytes for p in group if id(p) not in tables or id(p) in others) for group in groups]


def cut_into_stages(sizes: Sequence[int], work: Sequence[int], num_stages: int) -> list[int]:
    """Return the stage of each group of parameters.

    Time goes by the stage with the most work, so stages are of similar work if that makes the most work less, and the most bytes not much
    more, than stages of similar bytes have.

    Parameters
    ----------
    sizes, work : sequence of int
        Bytes of each group, in the model's order, and those that a pass computes with.
    num_stages : int
    """
    by_bytes = cut(sizes, num_stages)
    by_work = cut(work, num_stages, held=sizes, most_held=int(MORE_BYTES * max(loads_of(sizes, by_bytes, num_stages))))
    is_less = max(loads_of(work, by_work, num_stages)) <= LESS_WORK * max(loads_of(work, by_bytes, num_stages))
    return by_work if is_less and len(set(by_work)) == len(set(by_bytes)) else by_bytes


def loads_of(sizes: Sequence[int], parts: Sequence[int], num_parts: int) -> list[int]:
    """Return the sum of the `sizes` in each of `num_parts` parts; `parts` has the part of each size."""
    found = [0] * num_parts
    for size, part in zip(sizes, parts, strict=True):
        found[part] += size
    return found


def cut(sizes: Sequence[int], num_parts: int, *, held: Sequence[int] = (), most_held: int = 0) -> list[int]:
    """Return the part of each of `sizes`: consecutive parts, with the largest as small as possible, and no part empty if avoidable.

    If a single size exceeds what each part would have, the largest of the other parts is as small as possible. If there is another size of
    each, `held`, the sum of these in a part is at most `most_held`, for which there has to be a way.
    """
    held = held or [0] * len(sizes)
    low, high = 0, sum(sizes)
    while low < high:
        most = (low + high) // 2
        if _parts(sizes, num_parts, most, held, most_held)[-1] < num_parts:
            high = most
        else:
            low = most + 1
    return _parts(sizes, num_parts, high, held, most_held)


def _parts(sizes: Sequence[int], num_parts: int, most: int, held: Sequence[int], most_held: int) -> list[int]:
    """Fill one part after the other with up to `most`; a larger size has a part of its own."""
    found: list[int] = []
    part, total, total_held = 0, 0, 0
    for index, (size, bytes_held) in enumerate(zip(sizes, held, strict=True)):
        is_full = total + size > most or total_held + bytes_held > most_held
        if found and (is_full or len(sizes) - index < num_parts - part):
            part, total, total_held = part + 1, 0, 0
        total += size
        total_held += bytes_held
        found.append(part)
    return found

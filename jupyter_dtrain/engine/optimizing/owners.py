"""Which rank holds what an optimizer keeps of each parameter: the largest first, each to the rank that has least.

PyTorch's ZeroRedundancyOptimizer divides so as well. Whoever holds a parameter goes on doing so, whatever parameters come later; all ranks
ask at the same places and so come to the same.
"""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from ..identity import IdentityMap


class Owners:
    """The ranks of the parameters of all optimizers.

    Parameters
    ----------
    world_size : int
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._total = [0] * world_size  # numbers of all optimizers
        self._of: IdentityMap[tuple[list[int], IdentityMap[int]]] = IdentityMap()

    def of(self, optimizer: Optimizer) -> dict[int, int]:
        """Return for each parameter of an optimizer, by its ``id``, the rank that holds it, in the order of the groups."""
        found = self._of.get(optimizer) or self._of.set(optimizer, ([0] * self._world_size, IdentityMap()))
        loads, known = found
        owners: dict[int, int] = {}
        new: list[torch.Tensor] = []
        for parameter in parameters_of(optimizer):
            owner = known.get(parameter)
            owners[id(parameter)] = -1 if owner is None else owner
            if owner is None:
                new.append(parameter)
        if new:
            # Parameters that share memory, as views of one tensor, go together: two ranks would write over each other's.
            there = [(parameter, known.get(parameter)) for parameter in parameters_of(optimizer)]
            together = {parameter.untyped_storage()._cdata: owner for parameter, owner in there if owner is not None}
            self._divide(new, loads, known, together)
            owners = {id(parameter): _there(known.get(parameter)) for parameter, _ in there}
        return owners

    def _divide(self, new: list[torch.Tensor], loads: list[int], known: IdentityMap[int], together: dict[int, int]) -> None:
        sizes = [parameter.numel() if parameter.requires_grad else 0 for parameter in new]
        for index in sorted(range(len(new)), key=lambda index: -sizes[index]):
            memory = new[index].untyped_storage()._cdata
            owner = together.get(memory)
            if owner is None:
                owner = min(range(self._world_size), key=lambda rank: (loads[rank], self._total[rank]))
            together[memory] = known.set(new[index], owner)
            loads[owner] += sizes[index]
            self._total[owner] += sizes[index]


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the parameters of an optimizer, each once, in the order of its groups."""
    return list({id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}.values())


def _there(owner: int | None) -> int:
    assert owner is not None
    return owner

"""The order of the parameters in an optimizer's groups: a ``set`` of them has another one on each rank.

What is sharded is assigned by this order, and optimizer state is found by it. The ranks compare it when there are new parameters, by the
places of these in the models of the run, and take that of rank 0 if it differs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ....errors import UsageError
from ...comm.collectives import all_gather_object
from ...comm.shared_memory import SharedMemory
from ...identity_map import IdentityMap
from ...tensor.rank0_guard import all_ranks_come
from ...timing import COMMUNICATION, Counted

_SAMPLE = 64  # numbers of a tensor that is in no model, by which it is recognized


class GroupOrder:
    """Agrees on the order of the parameters of all optimizers.

    Parameters
    ----------
    models : callable
        Returns the modules of the run, in an order that all ranks have.
    strategy : str
        The strategy that messages name.
    memory : SharedMemory, optional
        Connects the ranks, if they share any.
    """

    def __init__(self, models: Callable[[], Iterable[nn.Module]], *, strategy: str, memory: SharedMemory | None = None) -> None:
        self._models, self._strategy, self._memory = models, strategy, memory
        self._agreed: IdentityMap[IdentityMap[bool]] = IdentityMap()  # by optimizer and parameter

    def agree(self, optimizer: Optimizer) -> None:
        """Order the parameters in the groups as rank 0 has them. Collective, if there are new ones.

        Raises
        ------
        UsageError
            They are in another order, and it is not known which is which.
        """
        agreed = self._agreed.get(optimizer) or self._agreed.set(optimizer, IdentityMap())
        groups: list[list[torch.Tensor]] = [group["params"] for group in optimizer.param_groups]
        parameters = {id(parameter): parameter for params in groups for parameter in params}
        if all(agreed.get(parameter) for parameter in parameters.values()):
            return
        for parameter in parameters.values():
            agreed.set(parameter, True)
        keys = self._keys(parameters)
        own = [[keys[id(parameter)] for parameter in params] for params in groups]
        all_ranks_come()
        with Counted(COMMUNICATION):
            of_ranks = all_gather_object(own, self._memory)
        first = of_ranks[0]
        if all(of_rank == first for of_rank in of_ranks):
            return
        if any(not _are_the_same(of_rank, first) for of_rank in of_ranks):
            if all(_without_numbers(of_rank) == _without_numbers(first) for of_rank in of_ranks):
                return
            raise UsageError(
                f"The engines have the parameters of `{type(optimizer).__name__}` in different orders, which `--strategy {self._strategy}` "
                "cannot match. Give them to the optimizer in the order of the model, not of a `set` or of `id`."
            )
        for params, of_own, of_first in zip(groups, own, first, strict=True):
            there = dict(zip(of_own, params, strict=True))
            params[:] = [there[key] for key in of_first]

    def _keys(self, parameters: dict[int, torch.Tensor]) -> dict[int, Hashable]:
        """Return for each of some parameters what all ranks know it by: its place among those in models, else its numbers."""
        keys: dict[int, Hashable] = {}
        for module in self._models():
            for parameter in module.parameters():
                if id(parameter) in parameters and id(parameter) not in keys:
                    keys[id(parameter)] = (len(keys),)
        return {key: keys[key] if key in keys else _looks(parameter) for key, parameter in parameters.items()}


def _looks(tensor: torch.Tensor) -> tuple[Any, ...]:
    shape, dtype, sample = tuple(tensor.shape), str(tensor.dtype), b""
    if type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided and tensor.device.type != "meta":
        with torch._C.DisableTorchFunction(), torch.no_grad():
            some = tensor.detach().reshape(-1)[:_SAMPLE].resolve_conj().cpu().contiguous()
            sample = some.view(torch.uint8).numpy().tobytes()
    return shape, dtype, sample


def _are_the_same(one: Sequence[Sequence[Hashable]], other: Sequence[Sequence[Hashable]]) -> bool:
    """Return whether the keys of two ranks are those of the same parameters in each group, each of which is known by its key."""
    pairs = [(len(a), len(b), set(a), set(b)) for a, b in zip(one, other, strict=False)]
    return len(one) == len(other) and all(num_a == num_b == len(a) and a == b for num_a, num_b, a, b in pairs)


def _without_numbers(groups: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [[key[:2] for key in keys] for keys in groups]

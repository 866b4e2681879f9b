"""Check that the ranks have the same weights: a cell may fill them in the order of a ``set``, which differs between processes.

``DistributedDataParallel`` overwrites the weights of the other ranks with those of rank 0 where it is made. Here a cell that would come to
other numbers than one process fails before its first step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..identity_map import IdentityMap

_TOLERANCE = 1e-4
"""Of the sum of absolute values. Hosts with other processors may round differently in each step."""


class ReplicaCheck:
    """Compares leaves of backward passes between the ranks.

    Parameters
    ----------
    exchange : callable
        Returns the objects of all ranks. A collective.
    names : callable
        Returns the names of some leaves, for messages.
    only_parameters : bool
        Whether parameters alone are compared: where ranks see batches of their own, another leaf may be such a batch.
    """

    def __init__(
        self,
        exchange: Callable[[Any], list[Any]],
        names: Callable[[Sequence[torch.Tensor]], list[str]],
        *,
        only_parameters: bool = False,
    ) -> None:
        self._exchange, self._names = exchange, names
        self._kinds = (nn.Parameter,) if only_parameters else (torch.Tensor, nn.Parameter)
        self._numbers: IdentityMap[int] = IdentityMap()  # of the leaves, the same on all ranks
        self._count = 0

    def before_pass(self, leaves: Sequence[torch.Tensor]) -> None:
        """Compare those of `leaves`, in the same order on all ranks, that were not compared yet. Collective, if there are any.

        Raises
        ------
        RuntimeError
            A leaf differs between the ranks.
        """
        new = {}
        for leaf in leaves:
            if type(leaf) in self._kinds and self._numbers.get(leaf) is None:
                self._count += 1
                new[self._numbers.set(leaf, self._count)] = leaf
        if new:
            self._compare(new)

    def check(self, leaves: Sequence[torch.Tensor]) -> None:
        """Compare `leaves`, in the same order on all ranks, of which each rank keeps a part from now on, or steps on its own. Collective.

        Raises
        ------
        RuntimeError
            A leaf differs between the ranks.
        """
        self._compare(dict(enumerate(leaves)))

    def differ(self, leaves: Sequence[torch.Tensor]) -> list[bool]:
        """Return for each of `leaves`, in the same order on all ranks, whether it differs between the ranks. Collective."""
        first, *others = self._exchange(_sums(dict(enumerate(leaves))))
        return [any(_are_apart(first.get(index), found.get(index)) for found in others) for index in range(len(leaves))]

    def at_end(self) -> None:
        """Compare all leaves that there still are, after the last pass. Collective.

        Raises
        ------
        RuntimeError
            A leaf differs between the ranks.
        """
        if self._count:
            self._compare({number: leaf for leaf, number in self._numbers.items()})

    def _compare(self, leaves: Mapping[int, torch.Tensor]) -> None:
        first, *others = self._exchange(_sums(leaves))
        for rank, found in enumerate(others, 1):
            if apart := [leaf for number, leaf in leaves.items() if _are_apart(first.get(number), found.get(number))]:
                names = self._names(apart)
                more = f" and {len(names) - 3} more" if names[3:] else ""
                raise RuntimeError(
                    f"Rank {rank} has other weights than rank 0: {', '.join(names[:3])}{more}. Does the cell fill or change them in the "
                    "order of a `set`, or by the clock? That differs between processes. Use a list or a dict, or `sorted(…)`."
                )


def _sums(leaves: Mapping[int, torch.Tensor]) -> dict[int, tuple[tuple[int, ...], float, float]]:
    """Return shape, sum and sum of absolute values of plain tensors among `leaves`, each of which is read once."""
    plain = {
        number: leaf.detach()
        for number, leaf in leaves.items()
        if type(leaf) in (torch.Tensor, nn.Parameter)  # a class that shards may have been set since
        and leaf.layout == torch.strided
        and leaf.device.type != "meta"
        and not leaf.is_complex()
    }
    with torch.no_grad():
        found = [
            torch.stack([values.sum(dtype=torch.float64), torch.linalg.vector_norm(values, 1, dtype=torch.float64)])
            for values in plain.values()
        ]
        # All of them in one go: on a GPU each reading waits for it.
        devices = {sums.device for sums in found}
        read = {device: iter(torch.stack([sums for sums in found if sums.device == device]).tolist()) for device in devices}
    return {number: (tuple(values.shape), *next(read[values.device])) for number, values in plain.items()}


def _are_apart(one: tuple[Any, float, float] | None, other: tuple[Any, float, float] | None) -> bool:
    if one is None or other is None:
        return False
    if one[0] != other[0]:
        return True
    limit = _TOLERANCE * one[2]
    if not math.isfinite(limit) or not math.isfinite(other[2]):
        return math.isfinite(limit) != math.isfinite(other[2])
    return abs(one[1] - other[1]) > limit or abs(one[2] - other[2]) > limit

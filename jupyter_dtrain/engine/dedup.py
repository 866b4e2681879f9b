"""State that all ranks hold alike in data-parallel training: parameters, gradients, and optimizer state.

A snapshot does not need it from each rank: every rank copies a part, and all resume from these parts. This divides the time that a
snapshot takes, the traffic from a GPU and the host memory by the number of ranks.

Each backward pass ends with the same gradients on all ranks (:mod:`.backward.gradient_sync`), so an optimizer's step yields the same
parameters. User code can break this, such as a model that writes a statistic of its share into a parameter. Therefore the ranks compare
samples of the bytes for each snapshot.

A parameter, or the optimizer's state for it, may be on one rank only (:mod:`.strategies`). That rank copies it, and all resume from its
copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import xxhash

from ..serialization.leaves import leaf_of
from ..serialization.pickler import Packed
from .staging import tensors_of

SMALLEST = 1 << 16  # bytes; copying less takes no longer than agreeing about it
SAMPLES = 16  # samples of a storage's bytes, evenly spaced
SAMPLE = 64  # bytes each
_KINDS = (torch.Tensor, torch.nn.Parameter)  # not tensors that span the ranks


@dataclass(frozen=True)
class Held:
    """A storage that only one rank has; the other ranks have a placeholder for it.

    Attributes
    ----------
    storage : UntypedStorage
    rank : int
        The rank that has it.
    device : str
        Type of its device.
    trained : bool
        Whether an optimizer trains it, or it is a gradient; ranks otherwise hold such storages alike.
    read : callable, optional
        Assembles its bytes in a flat tensor; ``None``: they are assembled already. A collective, in the order of all such storages. A rank
        that does not need the bytes, or has no room, passes ``None``.
    """

    storage: torch.UntypedStorage
    rank: int
    device: str
    trained: bool = False
    read: Callable[[torch.Tensor | None], None] | None = None


@dataclass(frozen=True)
class Apart:
    """Optimizer state that only one rank has: the optimizers by ``id``, and their storages in the same order on all ranks."""

    optimizers: frozenset[int] = frozenset()
    held: tuple[Held, ...] = field(default=())


NOTHING_APART = Apart()


class Common:
    """The large storages that all ranks hold alike, and those that one rank copies for all, in the same order on all ranks.

    Parameters
    ----------
    objects : iterable of object
        May contain optimizers, in the same order on all ranks.
    rank, world_size : int
    apart : Apart
        Storages that only one rank has.

    Attributes
    ----------
    owners : list of int
        For each storage, the rank that copies it.
    """

    def __init__(self, objects: Iterable[object], *, rank: int, world_size: int, apart: Apart = NOTHING_APART) -> None:
        self._rank = rank
        optimizers = {id(obj): obj for obj in objects if isinstance(obj, torch.optim.Optimizer)}
        with torch._C.DisableTorchFunctionSubclass():
            tensors = [
                tensor
                for optimizer in optimizers.values()
                for tensor in tensors_of(optimizer, with_state=id(optimizer) not in apart.optimizers)
                if type(tensor) in _KINDS
            ]
            not_alike = {one.storage._cdata for one in apart.held if one.trained}
            storages = [tensor.untyped_storage() for tensor in tensors if _is_large(tensor)]
            found = {storage._cdata: storage for storage in storages if storage._cdata not in not_alike}
        self._num_alike = len(found)
        held = {one.storage._cdata: one for one in apart.held if one.storage._cdata not in found}
        self._storages = [*found.values(), *(one.storage for one in held.values())]
        self._devices = [*(storage.device.type for storage in found.values()), *(one.device for one in held.values())]
        of_one = {number: one.rank for number, one in enumerate(held.values(), len(found))}
        self.owners = shared_out([storage.nbytes() for storage in self._storages], world_size, of_one)

    def elsewhere(self) -> dict[int, int]:
        """Return the numbers of the storages by address; a packer that meets them need not copy them."""
        return {storage._cdata: number for number, storage in enumerate(self._storages)}

    def add_own(self, packed: Packed) -> tuple[Packed, dict[int, int]]:
        """Return `packed` with this rank's copies appended as leaves, and their indices by number."""
        own = [number for number, owner in enumerate(self.owners) if owner == self._rank]
        leaves = [leaf_of(self._storages[number]) for number in own]
        where = {number: index for index, number in enumerate(own, len(packed.leaves))}
        all_leaves = [*packed.leaves, *(leaf for leaf, _ in leaves)]
        for index, number in packed.elsewhere.items():
            all_leaves[index] = replace(all_leaves[index], device=self._devices[number])  # the placeholder may be on another device
        return replace(packed, leaves=all_leaves, buffers=[*packed.buffers, *(buffer for _, buffer in leaves)]), where

    def bytes_of_others(self, *, on_cpu: bool) -> int:
        """Return how many bytes other ranks copy, on the CPU or from devices."""
        all_of_them = zip(self._storages, self.owners, self._devices, strict=True)
        return sum(storage.nbytes() for storage, owner, device in all_of_them if owner != self._rank and (device == "cpu") == on_cpu)

    def digest(self) -> str:
        """Return a digest that is equal on ranks that hold the same; it covers samples of the bytes."""
        hashed = xxhash.xxh3_128()
        for number, storage in enumerate(self._storages):
            hashed.update(storage.nbytes().to_bytes(8, "little"))
            if number < self._num_alike:
                hashed.update(_samples(storage))
        return f"{len(self._storages)} {hashed.hexdigest()}"


def _is_large(tensor: torch.Tensor) -> bool:
    plain = tensor.layout == torch.strided and tensor.device.type in ("cpu", "cuda")
    return plain and tensor.untyped_storage().nbytes() >= SMALLEST


def shared_out(sizes: list[int], num_ranks: int, of_one: Mapping[int, int]) -> list[int]:
    """Return a rank for each of `sizes`, balanced greedily: the largest first, each to the rank with the least.

    `of_one` maps indices to the ranks that must own them.
    """
    loads, owners = [0] * num_ranks, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (index not in of_one, -sizes[index])):
        owners[index] = of_one.get(index, loads.index(min(loads)))
        loads[owners[index]] += sizes[index]
    return owners


def _samples(storage: torch.UntypedStorage) -> bytes:
    numbers = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    starts = np.linspace(0, len(numbers) - SAMPLE, SAMPLES, dtype=int).tolist()
    return torch.cat([numbers[start : start + SAMPLE] for start in starts]).cpu().numpy().tobytes()

"""What all ranks hold alike because of the way in which they train: parameters, their gradients, and what the optimizers keep of them.

A snapshot need not have it from each rank: every rank copies a part of it, and all go on from these parts. That divides by the number of
ranks what a snapshot takes of their time, of the bus from a GPU and of the host's memory.

Each backward pass ends with the same gradients on all ranks (:mod:`.backward.gradient_sync`), so an optimizer's step leaves the same
parameters. Code of the user's can break that, as a model that writes what it has seen of its share into a parameter, so the ranks compare
samples of the bytes each time.

What an optimizer keeps of a parameter may be on one rank alone, as may the parameter (:mod:`.strategies`). That rank copies it, and all go
on from its copy.
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

SMALLEST = 1 << 16  # bytes; to copy less than this takes no longer than to ask about it
SAMPLES = 16  # of the bytes of a storage, from its beginning to its end
SAMPLE = 64  # bytes each
_KINDS = (torch.Tensor, torch.nn.Parameter)  # what spans the ranks is none


@dataclass(frozen=True)
class Held:
    """A storage that one rank alone has, and the others something that stands for it.

    Attributes
    ----------
    device : str
        The type of the device that it is on.
    trained : bool
        It is what an optimizer trains, or a gradient, which ranks otherwise hold alike.
    read : callable, optional
        Puts its bytes into a flat tensor, as they are nowhere together yet. A collective, in the order of all that are held; who does not
        have it, or no room for it, gives nothing.
    """

    storage: torch.UntypedStorage
    rank: int
    device: str
    trained: bool = False
    read: Callable[[torch.Tensor | None], None] | None = None


@dataclass(frozen=True)
class Apart:
    """What optimizers keep that is on one rank alone: the optimizers by their ``id``, and their storages in the same order on all ranks."""

    optimizers: frozenset[int] = frozenset()
    held: tuple[Held, ...] = field(default=())


NOTHING_APART = Apart()


class Common:
    """The large storages that all ranks hold alike, and those that one has for all, in the same order on all of them.

    Parameters
    ----------
    objects : iterable of object
        Among them the optimizers, in the same order on all ranks.
    rank, world_size : int
    apart : Apart
        What one rank has for all.

    Attributes
    ----------
    owners : list of int
        For each storage the rank that copies it.
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
        """Return the addresses of the storages, with the number of each, that need no copy of their own where they are met."""
        return {storage._cdata: number for number, storage in enumerate(self._storages)}

    def add_own(self, packed: Packed) -> tuple[Packed, dict[int, int]]:
        """Return `packed` with leaves behind its own for what this rank copies, and where those are, by number."""
        own = [number for number, owner in enumerate(self.owners) if owner == self._rank]
        leaves = [leaf_of(self._storages[number]) for number in own]
        where = {number: index for index, number in enumerate(own, len(packed.leaves))}
        all_leaves = [*packed.leaves, *(leaf for leaf, _ in leaves)]
        for index, number in packed.elsewhere.items():
            all_leaves[index] = replace(all_leaves[index], device=self._devices[number])  # what stands for it may be on another
        return replace(packed, leaves=all_leaves, buffers=[*packed.buffers, *(buffer for _, buffer in leaves)]), where

    def bytes_of_others(self, *, on_cpu: bool) -> int:
        """Return how many bytes other ranks copy, in the host's memory or from devices."""
        all_of_them = zip(self._storages, self.owners, self._devices, strict=True)
        return sum(storage.nbytes() for storage, owner, device in all_of_them if owner != self._rank and (device == "cpu") == on_cpu)

    def digest(self) -> str:
        """Return what is the same on ranks that hold the same, unless they differ nowhere in the samples."""
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
    """Return for each of `sizes` a rank, so that all have about as much: the largest first, each to who has least.

    `of_one` says by index which ranks have some of them to themselves.
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

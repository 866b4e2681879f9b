"""Parameters whose memory something else shares: a NumPy array, another tensor. Where writes cannot be seen, they are replicated.

PyTorch counts the references to a storage (:func:`has_others`). It does not know who else uses memory that it has not allocated, such as
that of a NumPy array: a storage of this kind cannot be resized. Storages that ``torch.load`` makes, and those into which a snapshot is
read, are of this kind too, but not shared.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy

from ....serialization.array_windows import storages_in_windows
from ....system.interpreter import num_references
from ...comm.collectives import all_gather_object
from ...comm.shared_memory import SharedMemory
from ...tensor.rank0_guard import all_ranks_come
from .buffers import BufferPool
from .parameter_shard import ParameterShard
from .row_steps import num_lists
from .sharded_rows import quiet

NOT_PYTORCHS = "their memory may be an array's"
_MOST_LOOKED_AT = 1 << 18
"""Objects in the result of ``torch.load`` that are searched for storages; storages beyond these count as an array's."""
_NO_TENSORS = (type, ModuleType, FunctionType, str, bytes, int, float)


class OwnMemory:
    """Storages that no array shares although they cannot be resized: those of ``torch.load`` in the cell, of a snapshot, and buffers.

    Parameters
    ----------
    pool : BufferPool, optional
        Provides memory for full parameters.
    """

    def __init__(self, pool: BufferPool | None = None) -> None:
        self._pool = pool
        self._loaded: dict[int, StorageWeakRef] = {}  # by address, which is theirs as long as the reference is there

    def adopt(self, objects: Sequence[object]) -> None:
        """Note the storages of `objects`, which were read from a snapshot, except those that arrays among them share."""
        with quiet():
            self._note(storages_without_arrays(objects))

    def join(self, other: OwnMemory) -> None:
        """Note what `other` has noted."""
        self._loaded.update(other._loaded)

    def _note(self, storages: Sequence[torch.UntypedStorage]) -> None:
        self._loaded = {address: one for address, one in self._loaded.items() if not one.expired()}
        self._loaded.update({storage._cdata: StorageWeakRef(storage) for storage in storages})

    def of_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `original`, by which ``torch.load`` reads, to note the storages that it makes."""

        @wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._note(_storages_behind(result))
            return result

        return load

    def is_arrays(self, storage: torch.UntypedStorage) -> bool:
        """Return whether the memory of `storage`, which did not come from the notebook, may be that of an array or a buffer."""
        if storage.resizable() or (self._pool is not None and self._pool.has(storage)):
            return False
        return storage._cdata not in self._loaded

    def is_looked_into(self, storage: torch.UntypedStorage, homes: Collection[int], *, is_made: bool = False) -> bool:
        """Return whether another object shares the memory of a tensor, through which the cell may write to it or read it.

        Parameters
        ----------
        storage : torch.UntypedStorage
        homes : collection of int
            Storages that came from the notebook.
        is_made : bool
            This project has made it.
        """
        is_known = is_made or storage._cdata in homes
        return has_others(storage, homes) or (not is_known and self.is_arrays(storage))


def storages_without_arrays(objects: Sequence[object]) -> list[torch.UntypedStorage]:
    """Return the storages of strided tensors among `objects`, except those that arrays among them share."""
    tensors = [obj for obj in objects if isinstance(obj, torch.Tensor) and not is_lazy(obj) and obj.layout == torch.strided]
    shared = storages_in_windows(objects)
    return [storage for tensor in tensors if (storage := tensor.untyped_storage())._cdata not in shared]


def _storages_behind(value: object) -> list[torch.UntypedStorage]:
    found, seen, next_ones = [], {id(value)}, [value]
    while next_ones and len(seen) < _MOST_LOOKED_AT:
        one = next_ones.pop()
        if isinstance(one, torch.Tensor):
            if one.layout == torch.strided:
                with quiet():
                    found.append(one.untyped_storage())
        elif isinstance(one, _NO_TENSORS):
            continue
        for other in gc.get_referents(one):
            if id(other) not in seen:
                seen.add(id(other))
                next_ones.append(other)
    return found


def has_others(storage: torch.UntypedStorage, homes: Collection[int], held: int = 1) -> bool:
    """Return whether `storage` has references besides `held` tensors, the caller and, if it is in `homes`, its known holders."""
    return bool(torch._C._storage_Use_Count(storage._cdata) > held + 1 + (storage._cdata in homes))


def held_gradients(gradients: Sequence[torch.Tensor | None], objects: Sequence[object], homes: Collection[int]) -> list[bool]:
    """Return for each full gradient whether something besides its parameter references it or its memory.

    Parameters
    ----------
    gradients : sequence of Tensor, optional
    objects : sequence of object
        Those that came from the notebook.
    homes : collection of int
        Storages that came from the notebook.
    """
    came, held, num_lists_now = frozenset(map(id, objects)), [], None
    for gradient in gradients:
        num_own = 3  # `gradients`, the loop, and the parameter
        if gradient is not None and id(gradient) in came:
            num_lists_now = num_lists(gradient, objects) if num_lists_now is None else num_lists_now
            num_own += num_lists_now + 1  # and what the parameter's attributes are compared with
        with quiet():
            is_held = gradient is not None and (num_references(gradient) > num_own or has_others(gradient.untyped_storage(), homes))
        held.append(is_held)
    return held


class SetMemory:
    """Handles ``parameter.data = …``: the new memory becomes the parameter's own, or the parameter is replicated from then on.

    Parameters
    ----------
    memory : SharedMemory
        Connects the ranks.
    own : OwnMemory
    """

    def __init__(self, memory: SharedMemory, own: OwnMemory) -> None:
        self._memory, self._own = memory, own

    def settle(self, set_now: Sequence[ParameterShard], whole: Sequence[ParameterShard]) -> list[ParameterShard]:
        """Give parameters whose ``data`` was set their own memory; return those whose memory something else shares. Collective.

        Parameters
        ----------
        set_now : sequence of ParameterShard
            Those whose ``data`` was set, the same on all ranks.
        whole : sequence of ParameterShard
            All that are whole, and may look into the same memory.
        """
        groups = [[other for other in whole if _storage(other) == _storage(shard)] for shard in set_now]
        shared = [[one.number for one in group] if self._is_shared(group) else [] for group in groups]
        all_ranks_come()
        of_ranks = all_gather_object(shared, self._memory)
        numbers = {number for of_rank in of_ranks for group in of_rank for number in group}
        for shard, group in zip(set_now, groups, strict=True):
            shard.is_set = False
            if shard.number not in numbers:
                shard.own_memory(alone=len(group) == 1)
        return [shard for shard in whole if shard.number in numbers]

    def _is_shared(self, group: Sequence[ParameterShard]) -> bool:
        """Return whether other objects share the memory of parameters, or several parameters the same part of it."""
        with quiet():
            storage = _full(group[0]).untyped_storage()
            own = sum(2 + (shard._data is not None) for shard in group)  # `full`, the parameter, and what ``data`` gives
            if has_others(storage, (), own) or self._own.is_arrays(storage):
                return True
            if any(shard.data_is_held() for shard in group):
                return True
            places = sorted((full.data_ptr(), _extent(full)) for full in map(_full, group))
        return any(begin + size > after for (begin, size), (after, _) in itertools.pairwise(places))


def _full(shard: ParameterShard) -> torch.Tensor:
    assert shard.full is not None
    return shard.full


def _storage(shard: ParameterShard) -> int:
    with quiet():
        return int(_full(shard).untyped_storage()._cdata)


def _extent(tensor: torch.Tensor) -> int:
    """Return the number of bytes from the first element of a tensor to the end of its last one."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0

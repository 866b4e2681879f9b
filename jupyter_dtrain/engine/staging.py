"""Copy buffers at one moment into reused memory: copying into new memory takes ten times as long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from ..serialization.pickler import Packed
from ..system.resources import memory

ALIGNED = 64  # bytes: alignment of copies, for speed
LARGE = 1 << 26  # bytes above which free memory is checked first: Linux kills a process that uses more than there is
SPARE = 0.05  # fraction of the host's or container's memory that stays free


class Staging:
    """Memory for copies of buffers. It grows to the largest size that :meth:`copied` needs.

    Parameters
    ----------
    num_ranks : int
        Number of ranks on this host that copy at the same time.
    """

    def __init__(self, num_ranks: int = 1) -> None:
        self._num_ranks = num_ranks
        self._memory = np.empty(0, np.uint8)

    def make_ready(self, num_bytes: int) -> None:
        """Allocate `num_bytes` and touch them: the system provides each page when it is first written to.

        Raises
        ------
        MemoryError
            Not enough memory is free for all ranks, and for what they write then.
        """
        if self._grow(num_bytes, of=num_bytes * self._num_ranks):
            self._memory.fill(0)

    def _grow(self, num_bytes: int, *, of: int) -> bool:
        """Return whether the memory is new, and uninitialized."""
        is_short = len(self._memory) < num_bytes
        check_memory(num_bytes if is_short else 0, of=of, num_ranks=self._num_ranks)
        if is_short:
            self._memory = np.empty(0, np.uint8)  # free the old memory before allocating
            self._memory = np.empty(num_bytes, np.uint8)
        return is_short

    def copied(self, packed: Packed) -> list[memoryview]:
        """Return copies of the buffers of `packed`, valid until the next call; buffers from a GPU are copies already.

        Raises
        ------
        MemoryError
            As in :meth:`make_ready`.
        """
        to_copy = [leaf.device == "cpu" for leaf in packed.leaves]
        sizes = [_aligned(buffer.nbytes) if copies else 0 for buffer, copies in zip(packed.buffers, to_copy, strict=True)]
        starts = np.cumsum([0, *sizes]).tolist()
        left_out = sum(packed.leaves[index].shape[0] for index in packed.elsewhere)
        self._grow(starts[-1], of=left_out + sum(buffer.nbytes for buffer in packed.buffers))
        found = list(packed.buffers)
        for index, (start, buffer) in enumerate(zip(starts, packed.buffers, strict=False)):
            if to_copy[index] and buffer.nbytes:
                copy = self._memory[start : start + buffer.nbytes]
                copy[...] = np.frombuffer(buffer, np.uint8)
                found[index] = copy.data
        return found


def check_memory(new: int, *, of: int, num_ranks: int) -> None:
    """Raise a `MemoryError` if the host has too little memory for copies of a state.

    Parameters
    ----------
    new : int
        Bytes that each rank must allocate for its copy.
    of : int
        Bytes of the state, which the ranks together write once to shared memory.
    num_ranks : int
        Number of ranks that do so at the same time.
    """
    needed = new * num_ranks + of
    if needed > LARGE:
        there = memory()
        if needed > there.left - SPARE * there.total:
            raise MemoryError("not enough memory is left for copies of the engines' values; fewer engines need less")


def bytes_of_state(objects: Iterable[object], *, to_stage: bool = False) -> int:
    """Return about how many bytes change in training: models and optimizers among `objects`, and gradients.

    With `to_stage`, count only those that :meth:`Staging.copied` copies.
    """
    storages: dict[int, int] = {}

    def count(tensor: object) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            if not to_stage or storage.device.type == "cpu":
                storages[storage._cdata] = _aligned(storage.nbytes())
            if tensor.is_leaf:
                count(tensor.grad)

    with torch._C.DisableTorchFunctionSubclass():  # count the rank's part of tensors that span the ranks: more would need an exchange
        for obj in objects:
            if isinstance(obj, torch.nn.Module):
                for tensor in (*obj.parameters(), *obj.buffers()):
                    count(tensor)
            elif isinstance(obj, torch.optim.Optimizer):
                for tensor in tensors_of(obj):
                    count(tensor)
    return sum(storages.values())


def tensors_of(optimizer: torch.optim.Optimizer, *, with_state: bool = True) -> Iterator[torch.Tensor]:
    """Yield the parameters of an optimizer, each with its gradient and, `with_state`, the tensors of its state."""
    states = getattr(optimizer, "state", {}) if with_state else {}  # a wrapper around another optimizer may have no state
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            state = states.get(parameter)
            kept = state.values() if isinstance(state, Mapping) else ()
            yield from (tensor for tensor in (parameter, parameter.grad, *kept) if isinstance(tensor, torch.Tensor))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNED) * ALIGNED

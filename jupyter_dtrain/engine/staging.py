"""Copies of buffers as they are at one moment, in memory that is used again: to copy into new memory takes ten times as long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from ..serialization.pickler import Packed
from ..system.resources import memory

ALIGNED = 64  # bytes: where a copy begins, for which the processor is fastest
LARGE = 1 << 26  # bytes that are asked for only where there are as many: Linux ends who asks for more than there is
SPARE = 0.05  # of the host's memory, or of a container's, that stays free


class Staging:
    """Memory for copies of buffers. It grows to what the largest of :meth:`copied` needs.

    Parameters
    ----------
    num_ranks : int
        How many do the same on this host at the same time.
    """

    def __init__(self, num_ranks: int = 1) -> None:
        self._num_ranks = num_ranks
        self._memory = np.empty(0, np.uint8)

    def make_ready(self, num_bytes: int) -> None:
        """Let `num_bytes` be there: the system gives memory a page at a time, when it is first written to.

        Raises
        ------
        MemoryError
            There is not enough for all ranks, and for what they write then.
        """
        if self._grow(num_bytes, of=num_bytes * self._num_ranks):
            self._memory.fill(0)

    def _grow(self, num_bytes: int, *, of: int) -> bool:
        """Return whether the memory is new, and undefined."""
        is_short = len(self._memory) < num_bytes
        check_memory(num_bytes if is_short else 0, of=of, num_ranks=self._num_ranks)
        if is_short:
            self._memory = np.empty(0, np.uint8)  # the old one goes before the new one comes
            self._memory = np.empty(num_bytes, np.uint8)
        return is_short

    def copied(self, packed: Packed) -> list[memoryview]:
        """Return the buffers of `packed` as they are now, good until the next call: what was on a GPU is a copy of its own already.

        Raises
        ------
        MemoryError
            As :meth:`make_ready` does.
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
    """Raise a `MemoryError` where the host has none for copies of a state.

    Parameters
    ----------
    new : int
        Bytes that each rank needs for its copy, besides what it has.
    of : int
        Bytes of the state, which the ranks write once, into shared memory.
    num_ranks : int
        How many do so at the same time.
    """
    needed = new * num_ranks + of
    if needed > LARGE:
        there = memory()
        if needed > there.left - SPARE * there.total:
            raise MemoryError("not enough memory is left for copies of the engines' values; fewer engines need less")


def bytes_of_state(objects: Iterable[object], *, to_stage: bool = False) -> int:
    """Return about how many bytes change in training: of models and optimizers among `objects`, and of gradients.

    `to_stage`: only those that :meth:`Staging.copied` copies.
    """
    storages: dict[int, int] = {}

    def count(tensor: object) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            if not to_stage or storage.device.type == "cpu":
                storages[storage._cdata] = _aligned(storage.nbytes())
            if tensor.is_leaf:
                count(tensor.grad)

    with torch._C.DisableTorchFunctionSubclass():  # of what spans the ranks, the rank's part: asking for more takes an exchange
        for obj in objects:
            if isinstance(obj, torch.nn.Module):
                for tensor in (*obj.parameters(), *obj.buffers()):
                    count(tensor)
            elif isinstance(obj, torch.optim.Optimizer):
                for tensor in tensors_of(obj):
                    count(tensor)
    return sum(storages.values())


def tensors_of(optimizer: torch.optim.Optimizer, *, with_state: bool = True) -> Iterator[torch.Tensor]:
    """Yield the parameters of an optimizer, each with its gradient and, `with_state`, what is kept of it."""
    states = getattr(optimizer, "state", {}) if with_state else {}  # which one around another may not have
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            state = states.get(parameter)
            kept = state.values() if isinstance(state, Mapping) else ()
            yield from (tensor for tensor in (parameter, parameter.grad, *kept) if isinstance(tensor, torch.Tensor))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNED) * ALIGNED

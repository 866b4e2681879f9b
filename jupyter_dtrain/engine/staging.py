"""Copies of buffers as they are at one moment, in memory that is used again: to copy into new memory takes ten times as long."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from ..capture.pickling import Packed

ALIGNED = 64  # bytes: where a copy begins, for which the processor is fastest


class Staging:
    """Memory for copies of buffers. It grows to what the largest of :meth:`copied` needs."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def make_ready(self, num_bytes: int) -> None:
        """Let `num_bytes` be there: the system gives memory a page at a time, when it is first written to."""
        if len(self._memory) < num_bytes:
            self._memory = np.empty(0, np.uint8)  # the old one goes before the new one comes
            self._memory = np.empty(num_bytes, np.uint8)
            self._memory.fill(0)

    def copied(self, packed: Packed) -> list[memoryview]:
        """Return the buffers of `packed` as they are now, good until the next call: what was on a GPU is a copy of its own already."""
        to_copy = [leaf.device == "cpu" for leaf in packed.leaves]
        sizes = [_aligned(buffer.nbytes) if copies else 0 for buffer, copies in zip(packed.buffers, to_copy, strict=True)]
        starts = np.cumsum([0, *sizes]).tolist()
        if len(self._memory) < starts[-1]:
            self._memory = np.empty(0, np.uint8)
            self._memory = np.empty(starts[-1], np.uint8)
        found = list(packed.buffers)
        for index, (start, buffer) in enumerate(zip(starts, packed.buffers, strict=False)):
            if to_copy[index]:
                copy = self._memory[start : start + buffer.nbytes]
                copy[...] = np.frombuffer(buffer, np.uint8)
                found[index] = copy.data
        return found


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
                for parameter, state in obj.state.items():
                    for tensor in (parameter, *state.values()):
                        count(tensor)
    return sum(storages.values())


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNED) * ALIGNED

"""Copies of buffers as they are at one moment, in memory that is used again: to copy into new memory takes ten times as long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

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

    def copied(self, buffers: Sequence[memoryview]) -> list[memoryview]:
        """Return copies of `buffers`, which are good until the next call."""
        starts = np.cumsum([0, *(_aligned(buffer.nbytes) for buffer in buffers)]).tolist()
        if len(self._memory) < starts[-1]:
            self._memory = np.empty(0, np.uint8)
            self._memory = np.empty(starts[-1], np.uint8)
        copies = []
        for start, buffer in zip(starts, buffers, strict=False):
            copy = self._memory[start : start + buffer.nbytes]
            copy[...] = np.frombuffer(buffer, np.uint8)
            copies.append(copy.data)
        return copies


def bytes_of_state(objects: Iterable[object]) -> int:
    """Return about how many bytes copies of what changes in training take: of models and optimizers among `objects`, and of gradients."""
    storages: dict[int, int] = {}

    def count(tensor: object) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = _aligned(storage.nbytes())
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

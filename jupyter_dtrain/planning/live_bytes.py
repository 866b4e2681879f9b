"""What tensors take while a training step runs on fakes: counted as they are made and let go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class StepMemory:
    """Bytes of tensors in a training step.

    Attributes
    ----------
    parameters, buffers, gradients, optimizer : int
        What is there between two steps.
    peak : int
        The most that is there at once, all of these included.
    largest : int
        Parameters of the largest block, a direct child of a ``ModuleList``, a ``Sequential`` or the model.
    loss : str
        What was taken for the cell's loss.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    peak: int
    largest: int
    loss: str

    @property
    def activations(self) -> int:
        """What is there only during a step: activations, what backward passes and the optimizer need for a moment, and the batch."""
        return max(0, self.peak - self.parameters - self.buffers - self.gradients - self.optimizer)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations return, for as long as these are there.

    Attributes
    ----------
    peak : int
        The most that were there at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._now = 0
        self._sizes: dict[StorageWeakRef, int] = {}

    def add(self, value: object) -> None:
        """Count the tensor `value`, if it is one and its storage is not counted yet."""
        if not isinstance(value, torch.Tensor):
            return
        try:
            storage = value.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse, or of another backend
            return
        reference = StorageWeakRef(storage)
        if reference in self._sizes:
            return
        self._sizes[reference] = storage.nbytes()
        self._now += storage.nbytes()
        if self._now > self.peak:  # what has been freed since counts until then, which makes no peak
            for gone in [known for known in self._sizes if known.expired()]:
                self._now -= self._sizes.pop(gone)
            self.peak = max(self.peak, self._now)

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self.add(leaf)
        return result

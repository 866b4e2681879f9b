"""What tensors take while a training step runs on fakes: counted as they are made and let go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LayerMemory(NamedTuple):
    """Bytes of what there is of a parameter of a large linear layer, and its rows."""

    rows: int
    parameters: int
    gradients: int
    optimizer: int


@dataclass(frozen=True)
class StepMemory:
    """Bytes of tensors in a training step.

    Attributes
    ----------
    parameters, buffers, gradients, optimizer : int
        What is there between two steps.
    peak : int
        The most that is there at once, all of these included.
    sizes, groups : tuple of int
        Of parameters, and of those of blocks and of the layers beside them, in the order in which the model has them.
    loss : str
        What was taken for the cell's loss.
    layers : tuple of LayerMemory
        Weights and biases of large linear layers.
    passing : int
        The most in the forward and the backward pass, beside parameters, buffers and optimizer state; `ungraded`: beside gradients too.
    remaining, updating : int
        What is there as the optimizer begins, beside all of these, and what it needs for a moment.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    peak: int
    loss: str
    sizes: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    layers: tuple[LayerMemory, ...] = ()
    passing: int = 0
    ungraded: int = 0
    remaining: int = 0
    updating: int = 0

    @property
    def largest(self) -> int:
        """Parameters of the largest block or layer."""
        return max(self.groups, default=0)


def between(share: int, ends: Mapping[int, StepMemory]) -> StepMemory:
    """Return what a step takes with a share of a batch, from what it takes with less and with more samples."""
    (less, low), (more, high) = sorted(ends.items())

    def at(of: str) -> int:
        return getattr(low, of) + (getattr(high, of) - getattr(low, of)) * (share - less) // (more - less)

    return replace(high, **{of: at(of) for of in ("peak", "passing", "ungraded", "remaining", "updating")})


class Lap(NamedTuple):
    """The most bytes that were there in a part of a step, the most beside gradients, and what is there at its end."""

    most: int
    ungraded: int
    now: int


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
        self._most = self._ungraded = 0  # since the last lap
        self._now = self._graded = 0
        self._sizes: dict[StorageWeakRef, int] = {}
        self._gradients: set[StorageWeakRef] = set()

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
        if self._now > self._most or self._now - self._graded > self._ungraded:  # what was freed since counts until then: that is no peak
            self._look()

    def add_gradient(self, value: torch.Tensor) -> None:
        """Count a tensor as a gradient that stays until the step."""
        if value.layout != torch.strided:
            return
        self.add(value)
        reference = StorageWeakRef(value.untyped_storage())
        if reference in self._sizes and reference not in self._gradients:
            self._gradients.add(reference)
            self._graded += self._sizes[reference]

    def lap(self) -> Lap:
        """Return what there was since the last lap, and begin the next one."""
        self._look()
        found = Lap(self._most, self._ungraded, self._now)
        self._most = self._ungraded = 0
        self._look()
        return found

    def _look(self) -> None:
        for gone in [known for known in self._sizes if known.expired()]:
            size = self._sizes.pop(gone)
            self._now -= size
            if gone in self._gradients:
                self._gradients.remove(gone)
                self._graded -= size
        self._most, self._ungraded = max(self._most, self._now), max(self._ungraded, self._now - self._graded)
        self.peak = max(self.peak, self._most)

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self.add(leaf)
        return result

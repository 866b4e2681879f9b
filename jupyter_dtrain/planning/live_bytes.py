"""What tensors take while a training step runs on fakes: counted as they are made and let go."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .step_work import StepWork, Work
from .work_space import WorkSpace

_DEVICE = torch.ops.prim.device.default


class LayerMemory(NamedTuple):
    """Bytes of what there is of a parameter of a large linear layer, and its rows, or heads, of which each engine has as many.

    `is_tied`: whether a layer of another kind has it too, and gets it whole.
    """

    rows: int
    parameters: int
    gradients: int
    optimizer: int
    is_even: bool = False
    is_tied: bool = False

    def is_divided(self, engines: int) -> bool:
        """Return whether so many engines divide it."""
        return not self.rows % engines if self.is_even else self.rows >= engines


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
    one_by_one : bool
        Whether it needs that for one parameter after the other: as much where it has the largest of them alone.
    work : StepWork
        What is computed, and what engines would have to exchange of it; of the largest share.
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
    one_by_one: bool = False
    work: StepWork = field(default_factory=StepWork)

    @property
    def largest(self) -> int:
        """Parameters of the largest block or layer."""
        return max(self.groups, default=0)


def between(share: int, ends: Mapping[int, StepMemory]) -> StepMemory:
    """Return what a step takes with a share of a batch, from what it takes with less and with more samples."""
    (less, low), (more, high) = sorted(ends.items())

    def at(of: str) -> int:
        begins, ends = int(getattr(low, of)), int(getattr(high, of))
        return begins + (ends - begins) * (share - less) // (more - less)

    sizes: dict[str, Any] = {of: at(of) for of in ("peak", "passing", "ungraded", "remaining", "updating")}
    return replace(high, **sizes)


class Lap(NamedTuple):
    """The most bytes that were there in a part of a step, the most beside gradients, and what is there at its end."""

    most: int
    ungraded: int
    now: int


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations return, for as long as these are there.

    Parameters
    ----------
    work : Work, optional
        Counts what the operations do.
    space : WorkSpace, optional
        Says what libraries need within operations.

    Attributes
    ----------
    peak : int
        The most that were there at once.
    """

    def __init__(self, work: Work | None = None, space: WorkSpace | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._work, self._space = work, space
        self.peak = 0
        self._most = self._ungraded = 0  # since the last lap
        self._now = self._graded = 0
        self._outer: list[tuple[int, int]] = []  # the most before what is looked at by itself
        self._there: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}  # bytes, by the storage's address
        self._gradients: set[int] = set()

    def add(self, value: object, least: int = 0) -> None:
        """Count the tensor `value`, if it is one and its storage is not counted yet, as `least` bytes or more."""
        if not isinstance(value, torch.Tensor):
            return
        try:
            storage = value.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse, or of another backend
            return
        key = storage._cdata
        if key not in self._there:
            size = max(storage.nbytes(), least)
            self._there[key] = size, weakref.ref(storage, partial(self._freed, key))
            self._now += size
            self._look()

    def add_gradient(self, value: torch.Tensor) -> None:
        """Count a tensor as a gradient that stays until the step."""
        if value.layout != torch.strided:
            return
        self.add(value)
        key = value.untyped_storage()._cdata
        if key not in self._gradients:
            self._gradients.add(key)
            self._graded += self._there[key][0]

    def bytes_now(self) -> int:
        """Return the bytes that there are."""
        return self._now

    def begin(self) -> tuple[int, int]:
        """Return what there is, and what beside gradients, and look for the most of both from now on."""
        self._outer.append((self._most, self._ungraded))
        self._most, self._ungraded = self._now, self._now - self._graded
        return self._most, self._ungraded

    def end(self) -> tuple[int, int]:
        """Return the most since :meth:`begin`, and the most beside gradients."""
        found = self._most, self._ungraded
        most, ungraded = self._outer.pop()
        self._most, self._ungraded = max(most, self._most), max(ungraded, self._ungraded)
        return found

    def spike(self, most: int, ungraded: int) -> None:
        """Count so many bytes more than there are, for a moment; `ungraded`: beside gradients."""
        self._most = max(self._most, self._now + most)
        self._ungraded = max(self._ungraded, self._now - self._graded + ungraded)
        self.peak = max(self.peak, self._most)

    def lap(self) -> Lap:
        """Return what there was since the last lap, and begin the next one."""
        found = Lap(self._most, self._ungraded, self._now)
        self._most = self._ungraded = 0
        self._look()
        return found

    def _freed(self, key: int, _: object) -> None:
        size, _ = self._there.pop(key)
        self._now -= size
        if key in self._gradients:
            self._gradients.remove(key)
            self._graded -= size

    def _look(self) -> None:
        self._most, self._ungraded = max(self._most, self._now), max(self._ungraded, self._now - self._graded)
        self.peak = max(self.peak, self._most)

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):  # autograd asks often, and the way through PyTorch's own mode is long
            return args[0].fake_device
        result = func(*args, **(kwargs or {}))
        space = self._space.of(func, args, kwargs or {}) if self._space is not None else None
        if space is not None:
            self.spike(space.most, space.most)
            for leaf, size in zip((result,) if isinstance(result, torch.Tensor) else result, space.returned, strict=True):
                self.add(leaf, size)
        for leaf in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            self.add(leaf)
        if self._work is not None:
            self._work.add(func, args, kwargs or {}, result, None if space is None else space.seconds)
        return result

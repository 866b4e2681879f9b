"""Count the bytes of live tensors while a training step runs on fakes."""

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

from .model_cut import cut_into_stages
from .step_work import StepWork, Work
from .work_space import WorkSpace

_DEVICE = torch.ops.prim.device.default


class LayerMemory(NamedTuple):
    """Bytes of a parameter of a large layer with its gradient and state, and the number of rows or heads that are divided.

    `is_even`: whether engines need equal parts. `is_tied`: whether a layer of another kind shares the parameter and needs all of it.
    """

    rows: int
    parameters: int
    gradients: int
    optimizer: int
    is_even: bool = False
    is_tied: bool = False

    def is_divided(self, engines: int) -> bool:
        """Return whether the parameter is divided over `engines`."""
        return not self.rows % engines if self.is_even else self.rows >= engines


@dataclass(frozen=True)
class StepMemory:
    """Bytes of tensors in a training step.

    Attributes
    ----------
    parameters, buffers, gradients, optimizer : int
        Live between two steps.
    peak : int
        Peak of a step, including all of these.
    sizes, groups : tuple of int
        Bytes of each parameter, and of the parameters of each block and each layer beside blocks, in the model's order.
    computed : tuple of int
        Bytes in each of the `groups` that a pass computes with: without lookup tables.
    loss : str
        Name of the function that stands for the cell's loss.
    layers : tuple of LayerMemory
        Parameters of large layers that can be sharded.
    passing : int
        Peak of the forward and backward pass, beside parameters, buffers and optimizer state; `ungraded`: beside gradients too.
    remaining, updating : int
        Bytes that are live as the optimizer begins, beside all of these, and what it allocates temporarily.
    one_by_one : bool
        Whether it allocates that for one parameter after the other, so that the largest parameter alone needs as much.
    work : StepWork
        Computation and communication of the largest share.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    peak: int
    loss: str
    sizes: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    computed: tuple[int, ...] = ()
    layers: tuple[LayerMemory, ...] = ()
    passing: int = 0
    ungraded: int = 0
    remaining: int = 0
    updating: int = 0
    one_by_one: bool = False
    work: StepWork = field(default_factory=StepWork)

    @property
    def largest(self) -> int:
        """Bytes of parameters of the largest block or layer."""
        return max(self.groups, default=0)

    def stages(self, number: int) -> list[int]:
        """Return the stage of each of the `groups` in a pipeline of `number` stages."""
        return cut_into_stages(self.groups, self.computed, number)


def between(share: int, ends: Mapping[int, StepMemory]) -> StepMemory:
    """Return the memory of a step on a share, interpolated between a smaller and a larger share."""
    (less, low), (more, high) = sorted(ends.items())

    def at(of: str) -> int:
        begins, ends = int(getattr(low, of)), int(getattr(high, of))
        return begins + (ends - begins) * (share - less) // (more - less)

    sizes: dict[str, Any] = {of: at(of) for of in ("peak", "passing", "ungraded", "remaining", "updating")}
    return replace(high, **sizes)


class Lap(NamedTuple):
    """Peak bytes in a part of a step, the peak without gradients, and the live bytes at its end."""

    most: int
    ungraded: int
    now: int


class LiveBytes(TorchDispatchMode):
    """Dispatch mode that counts the bytes of all storages that operations return, until the storages are freed.

    Parameters
    ----------
    work : Work, optional
        Counts the work of the operations.
    space : WorkSpace, optional
        Tells the workspace of libraries within operations.

    Attributes
    ----------
    peak : int
        Peak of live bytes.
    """

    def __init__(self, work: Work | None = None, space: WorkSpace | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._work, self._space = work, space
        self.peak = 0
        self._most = self._ungraded = 0  # since the last lap
        self._now = self._graded = 0
        self._outer: list[tuple[int, int]] = []  # the peaks of enclosing measurements
        self._there: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}  # bytes, by the storage's address
        self._gradients: set[int] = set()

    def add(self, value: object, least: int = 0) -> None:
        """Count `value` as `least` bytes or more, if it is a tensor whose storage is not counted yet."""
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
        """Count a tensor as a gradient, which lives until the step."""
        if value.layout != torch.strided:
            return
        self.add(value)
        key = value.untyped_storage()._cdata
        if key not in self._gradients:
            self._gradients.add(key)
            self._graded += self._there[key][0]

    def bytes_now(self) -> int:
        """Return the live bytes."""
        return self._now

    def begin(self) -> tuple[int, int]:
        """Begin a nested measurement; return the live bytes, and those without gradients."""
        self._outer.append((self._most, self._ungraded))
        self._most, self._ungraded = self._now, self._now - self._graded
        return self._most, self._ungraded

    def end(self) -> tuple[int, int]:
        """Return the peak since :meth:`begin`, and the peak without gradients."""
        found = self._most, self._ungraded
        most, ungraded = self._outer.pop()
        self._most, self._ungraded = max(most, self._most), max(ungraded, self._ungraded)
        return found

    def spike(self, most: int, ungraded: int) -> None:
        """Count a temporary allocation of `most` bytes; `ungraded` is the same without gradients."""
        self._most = max(self._most, self._now + most)
        self._ungraded = max(self._ungraded, self._now - self._graded + ungraded)
        self.peak = max(self.peak, self._most)

    def lap(self) -> Lap:
        """Return the peaks since the last lap, and begin the next one."""
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
        if func is _DEVICE and isinstance(args[0], FakeTensor):  # autograd asks often, and PyTorch's own mode is slow
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

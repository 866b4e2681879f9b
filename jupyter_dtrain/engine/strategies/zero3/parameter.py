"""A parameter of which each rank has some rows: the object of the cell, and where its numbers are.

It stays the same object, so optimizers, lists of parameters and hooks of the cell's go on to hold it. While its numbers are away it has the
class :class:`Zero3Parameter`, which sees every operation on it that Python starts, and memory of a single NaN: what gets past the class
reads numbers that nobody takes for right ones.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import nn

from .buffers import BufferPool
from .gradient_rows import GradientRows
from .sharded_rows import SharedRows, give_back, quiet

_ASKS_FOR_NO_NUMBERS = frozenset(
    """
    __hash__ __len__ _backward_hooks _is_view _is_zerotensor _post_accumulate_grad_hooks _version device dim dtype element_size grad_fn
    is_complex is_conj is_cpu is_cuda is_floating_point is_inference is_leaf is_meta is_mkldnn is_mps is_neg is_nested is_quantized
    is_same_size is_signed is_sparse is_xla is_xpu itemsize layout names nbytes ndim nelement numel output_nr register_hook
    register_post_accumulate_grad_hook requires_grad requires_grad_ retain_grad retains_grad shape size
    """.split()  # noqa: SIM905
)


def name_of(func: Any) -> tuple[str, str]:
    """Return the name of what a ``__torch_function__`` is given, and of an attribute how it is accessed."""
    name = getattr(func, "__name__", "")
    return (func.__self__.__name__, name) if name in ("__get__", "__set__", "__delete__") else (name, "")


class Zero3Parameter(nn.Parameter):
    """A parameter whose numbers may be away. Its class attribute `touched` runs operations on it while a run shards parameters."""

    touched: ClassVar[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None] = None
    gradient: ClassVar[Callable[..., Any]]

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run an operation that one of its operands is such a parameter of."""
        name, access = name_of(func)
        if cls.touched is not None and access and name == "grad":
            return cls.gradient(func, access, *args)
        if name in _ASKS_FOR_NO_NUMBERS:
            with quiet():
                return func(*args, **(kwargs or {}))
        if cls.touched is None:
            raise RuntimeError("The numbers of this parameter are on other engines, and its cell has ended.")
        return cls.touched(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a plain parameter: a copy is none of the model's."""
        if id(self) not in memo:
            with torch.no_grad():
                copy = nn.Parameter(self.detach().clone(memory_format=torch.preserve_format), self.requires_grad)
            memo[id(self)] = copy
        return memo[id(self)]

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Return what makes a plain parameter."""
        return nn.Parameter, (self.detach().clone(), self.requires_grad)


Zero3Parameter.__name__ = Zero3Parameter.__qualname__ = "Parameter"


class ParameterShard(GradientRows):
    """The rows of a parameter that this rank has, its gradient's too, and all of it while somebody needs that.

    Parameters
    ----------
    parameter : nn.Parameter
        Whole, on the CPU. (R, ...)
    storage : SharedRows
        Where its rows are to lie.
    rank : int
    number : int
        The same on all ranks.
    pool : BufferPool
        Has memory for all of it.
    home : Tensor, optional
        The memory with which it came from the notebook, which has what it is when it is returned.

    Attributes
    ----------
    rows : Tensor
        This rank's. (r, ...)
    full : Tensor, optional
        All of them.
    uses : int
        Calls that need all of it.
    is_lent : bool
        Something that shares memory with all of it was given away.
    is_pinned : bool
        It stays whole, its gradient too, as an optimizer takes all of it.
    unit : list of ParameterShard
        What is fetched along with it.
    """

    strategy: ClassVar[str] = "zero3"
    """Which messages name."""

    def __init__(
        self,
        parameter: nn.Parameter,
        storage: SharedRows,
        *,
        rank: int,
        number: int,
        pool: BufferPool,
        home: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self._parameter = weakref.ref(parameter)
        self._pool = pool
        self.shape, self.dtype = tuple(parameter.shape), parameter.dtype
        self.nbytes = parameter.nbytes
        self.storage, self.number, self.rank, self.home = storage, number, rank, home
        self.shares, self.dim, self.own, self.rows = storage.kind.shares, storage.kind.dim, storage.own, storage.rows
        with torch.no_grad(), quiet():
            self.rows.copy_(parameter.detach()[self.own])
            self.away = torch.full((), float("nan"), dtype=self.dtype).expand(self.shape)
            torch._C._set_throw_on_mutable_data_ptr(self.away)  # for who asks for its address
            parameter.data = self.away
        if home is not None:
            give_back(home)
        parameter.__class__ = Zero3Parameter
        self.full: torch.Tensor | None = None
        self.uses, self.is_pinned = 0, False
        self.unit: list[ParameterShard] = [self]
        self._seen = -1  # version of the parameter when its rows were last what it is
        self._data: torch.Tensor | None = None  # what ``parameter.data`` has given, and its version then
        self._data_seen = 0
        self.is_lent = False

    @property
    def parameter(self) -> nn.Parameter:
        """The cell's object."""
        found = self._parameter()
        assert found is not None
        return found

    # -- all of it ---------------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Have all of it."""
        if self.full is None:
            with quiet(), torch.no_grad():
                self.full = self._pool.empty(self.shape, self.dtype)
                self.storage.read(self.full)
                self.parameter.data = self.full
                self._seen = self.parameter._version
                self.is_lent = False

    def refresh(self) -> None:
        """Let all of it, which somebody holds, be what the ranks have now."""
        assert self.full is not None
        with quiet(), torch.no_grad():
            self.storage.read(self.full)
            self.parameter.data = self.full
        self.note()

    def let_go(self, *, is_stale: bool = False) -> bool:
        """Have the rows alone, unless somebody needs or holds all of it, or has written to it; return whether that is so now.

        `is_stale`: a step has changed the rows.
        """
        if self.full is None:
            return True
        if self.uses or self.is_written() or self.is_held():
            return False
        if not is_stale:
            self.check()
        with quiet(), torch.no_grad():
            self.parameter.data = self.away
        self.full = self._data = None
        return True

    def is_held(self) -> bool:
        """Return whether somebody holds what shares memory with all of it: a kept ``state_dict()``, or a graph."""
        with quiet():
            assert self.full is not None
            storage = self.full.untyped_storage()
            own = 3 + (self._data is not None)  # `full`, the parameter, `storage`, what ``data`` has given
            return torch._C._storage_Use_Count(storage._cdata) > own or (self._data is not None and sys.getrefcount(self._data) > 2)

    def data(self) -> torch.Tensor:
        """Return ``parameter.data``, of which nobody would count what is written to it."""
        with quiet():
            if self._data is None:
                self._data = self.parameter.data
                self._data_seen = self._data._version
            return self._data

    def replaced(self) -> None:
        """Note that ``parameter.data`` has been set.

        Raises
        ------
        RuntimeError
            It has another shape or type.
        """
        with quiet():
            now = self.parameter.data
            if tuple(now.shape) != self.shape or now.dtype != self.dtype or now.device.type != "cpu":
                self.parameter.data = self.full if self.full is not None else self.away
                raise RuntimeError(
                    f"`--strategy {self.strategy}` shards this parameter, and its `data` was set to a tensor of another shape, type or "
                    "device. Take `--strategy auto`."
                )
            self.full = now if now.is_contiguous() else now.contiguous()
            self.parameter.data = self.full
            self._data, self._data_seen = now.detach(), -1  # which counts as written
            self.home = None

    def kind(self) -> type[nn.Parameter]:
        """Return the class of the parameter now."""
        return nn.Parameter if self.uses else Zero3Parameter

    # -- for others ----------------------------------------------------------------------------------------------------

    def for_snapshot(self) -> torch.Tensor:
        """Return memory for all of it. What stands there is not looked at."""
        if self.full is not None:  # somebody holds it, and is to be written with the same memory
            return self.full
        # A parameter that is not trained is compared with what it was: where that is its own memory, it would seem as it was.
        return self.home if self.home is not None and self.parameter.requires_grad else torch.empty(self.shape, dtype=self.dtype)

    @contextmanager
    def shown(self, numbers: torch.Tensor, gradient: torch.Tensor | None) -> Iterator[None]:
        """Let the parameter be plain, with `numbers` and `gradient`, until the end of the ``with`` block."""
        parameter = self.parameter
        with quiet(), torch.no_grad():
            before = parameter.grad
            self._put(numbers, before if gradient is None else gradient)
            parameter.__class__ = nn.Parameter
        try:
            yield
        finally:
            with quiet(), torch.no_grad():
                self._put(self.away if self.full is None else self.full, before)
                parameter.__class__ = self.kind()
            if numbers is self.home:
                give_back(numbers)

    def _put(self, numbers: torch.Tensor, gradient: torch.Tensor | None) -> None:
        self.parameter.grad = None  # of another shape or not, it is looked at when the numbers are set
        self.parameter.data = numbers
        self.parameter.grad = gradient

    def return_home(self, gradient: torch.Tensor | None) -> None:
        """Be plain and whole for good, in the notebook's memory where nobody holds another; `gradient` is all of its gradient's rows."""
        with quiet(), torch.no_grad():
            if self.home is not None and (self.full is None or not self.is_held()):
                if self.full is None:
                    self.storage.read(self.home)
                else:
                    self.home.copy_(self.full)
                self.full = self.home
            elif self.full is None:
                self.full = torch.empty(self.shape, dtype=self.dtype)
                self.storage.read(self.full)
            self._put(self.full, self.parameter.grad if gradient is None else gradient)
            self._forget_gradient()
            self.parameter.__class__ = nn.Parameter

    def be_as_it_came(self) -> None:
        """Be plain, and what came from the notebook; what did not, stays away, and whoever reads it is told."""
        with quiet(), torch.no_grad():
            if self.home is not None:
                give_back(self.home)
                self._put(self.home, None)
                self.parameter.__class__ = nn.Parameter
            else:
                self._put(self.away, None)
                self.parameter.__class__ = Zero3Parameter

    # -- what the cell writes ----------------------------------------------------------------------------------------

    def is_written(self) -> bool:
        """Return whether the parameter has been written to since it was fetched: the same on all ranks."""
        with quiet():
            return self.full is not None and (self.parameter._version != self._seen or self._is_data_written())

    def _is_data_written(self) -> bool:
        return self._data is not None and self._data._version != self._data_seen

    def mark_written(self) -> None:
        """Count as written what is all there: fused optimizers write without counting."""
        self._seen = -1

    def write_back(self) -> None:
        """Let the rows be what was written to the parameter."""
        with quiet(), torch.no_grad():
            assert self.full is not None
            self.rows.copy_(self.full[self.own])
        self.note()

    def note(self) -> None:
        """Know that the rows are what the parameter is."""
        with quiet():
            self._seen = self.parameter._version
            if self._data is not None:
                self._data_seen = self._data._version

    def check(self) -> None:
        """Look whether there was written to what was given away in a way that nobody counts.

        Raises
        ------
        RuntimeError
        """
        if self.is_lent and self.full is not None:
            with quiet():
                if not _same_bytes(self.full[self.own], self.rows):
                    raise RuntimeError(
                        "There was written to a parameter by NumPy, or another way that PyTorch does not count, "
                        f"which `--strategy {self.strategy}` cannot follow. Write with `torch.no_grad()`, or take `--strategy auto`."
                    )


def _same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8))

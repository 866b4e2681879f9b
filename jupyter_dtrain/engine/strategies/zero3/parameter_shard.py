"""A sharded parameter on one rank: its rows, and its full tensor while that is gathered."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .buffers import BufferPool
from .gradient_rows import GradientRows
from .parameter import Zero3Parameter
from .parameter_writes import ParameterWrites
from .sharded_rows import Came, SharedRows, give_back, quiet


class ParameterShard(GradientRows, ParameterWrites):
    """The rows of a parameter and of its gradient that this rank owns, and the full parameter while it is in use.

    Parameters
    ----------
    parameter : nn.Parameter
        The full parameter, on the CPU. (R, ...)
    storage : SharedRows
        Memory for its rows.
    rank : int
    number : int
        The same on all ranks.
    pool : BufferPool
        Provides memory for the full parameter.
    home : Tensor, optional
        The memory in which it came from the notebook, and to which it is returned.

    Attributes
    ----------
    rows : Tensor
        This rank's. (r, ...)
    full : Tensor, optional
        The full parameter, if it is gathered. (R, ...)
    uses : int
        Number of calls under way that need the full parameter.
    is_pinned : bool
        The parameter and its gradient stay full, because an optimizer step takes full tensors.
    unit : list of ParameterShard
        The parameters that are gathered with this one.
    """

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
        self.shape, self.number, self.rank, self.home = tuple(parameter.shape), number, rank, home
        self.shares, self.dim = storage.kind.shares, storage.kind.dim
        self.store_in(storage)
        with torch.no_grad(), quiet():
            storage.fill(parameter.detach())
            parameter.data = self.away
        self._came = None if home is None else Came(home)
        parameter.__class__ = Zero3Parameter
        self.full: torch.Tensor | None = None
        self.uses, self.is_pinned = 0, False
        self.unit: list[ParameterShard] = [self]

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter, the object that the cell has."""
        found = self._parameter()
        assert found is not None
        return found

    @property
    def is_gone(self) -> bool:
        """Whether the parameter no longer exists: the cell has put another one in its place."""
        return self._parameter() is None

    def store_in(self, storage: SharedRows) -> None:
        """Have the rows in `storage` from now on, which may be of another type. They are not written yet."""
        self.storage, self.own, self.rows, self.dtype = storage, storage.own, storage.rows, storage.kind.dtype
        self.nbytes = torch.Size(self.shape).numel() * self.dtype.itemsize
        with torch.no_grad(), quiet():
            self.away = torch.full((), float("nan"), dtype=self.dtype, device="cpu").expand(self.shape)
            torch._C._set_throw_on_mutable_data_ptr(self.away)  # for who asks for its address

    # -- all of it ---------------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Gather the full parameter."""
        if self.full is None:
            with quiet(), torch.no_grad():
                self.full = self._pool.empty(self.shape, self.dtype)
                self.storage.read(self.full)
                self.parameter.data = self.full
                self._seen = self.parameter._version
                self.is_lent = False

    def refresh(self) -> None:
        """Gather the full parameter again, in the memory that something still references."""
        assert self.full is not None
        with quiet(), torch.no_grad():
            self.storage.read(self.full)
            self.parameter.data = self.full
        self.note()

    def let_go(self, *, is_stale: bool = False) -> bool:
        """Free the full parameter unless it is in use, referenced or written to; return whether only the rows are left.

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
        """Return whether something else references the memory of the full parameter: a kept ``state_dict()``, an autograd graph."""
        with quiet():
            assert self.full is not None
            storage = self.full.untyped_storage()
            own = 3 + (self._data is not None)  # `full`, the parameter, `storage`, what ``data`` has given
            return torch._C._storage_Use_Count(storage._cdata) > own or self.data_is_held()

    def kind(self) -> type[nn.Parameter]:
        """Return the class that the parameter is to have now."""
        return nn.Parameter if self.uses else Zero3Parameter

    # -- for others --------------------------------------------------------------------------------------------------

    def for_snapshot(self) -> torch.Tensor:
        """Return memory for the full parameter in a snapshot; its contents are undefined."""
        if self.full is not None:  # somebody holds it, and is to be written with the same memory
            return self.full
        # A parameter that is not trained is compared with what it was: where that is its own memory, it would seem as it was.
        return (
            self.home if self.home is not None and self.parameter.requires_grad else torch.empty(self.shape, dtype=self.dtype, device="cpu")
        )

    @contextmanager
    def shown(self, numbers: torch.Tensor, gradient: torch.Tensor | None) -> Iterator[None]:
        """Make the parameter a plain one with `numbers` and `gradient` in the ``with`` block."""
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
        """Become a plain, full parameter for good, in the notebook's memory if nothing references another; `gradient` is the full one."""
        with quiet(), torch.inference_mode(mode=False), torch.no_grad():
            if self.home is not None and (self.full is None or not self.is_held()):
                if self.full is None:
                    self.storage.read(self.home)
                else:
                    self.home.copy_(self.full)
                self.full = self.home
            elif self.full is None:
                self.full = torch.empty(self.shape, dtype=self.dtype, device="cpu")
                self.storage.read(self.full)
            if gradient is not None:
                self.make_gradient_full(gradient)
            self._put(self.full, self.parameter.grad)
            self._forget_gradient()
            self.parameter.__class__ = nn.Parameter

    def be_as_it_came(self) -> None:
        """Become the plain parameter that came from the notebook. One that the cell has made stays empty; reading it is an error."""
        with quiet(), torch.no_grad():
            if self.home is not None and self._came is not None:
                self._came.restore(self.home)
                self._put(self.home, None)
                self.parameter.__class__ = nn.Parameter
            else:
                self._put(self.away, None)
                self.parameter.__class__ = Zero3Parameter

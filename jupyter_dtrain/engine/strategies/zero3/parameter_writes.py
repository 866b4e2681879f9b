"""Writes of the cell to the full tensor of a sharded parameter: found by version counters, or by its bytes where nothing counts."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn

from ...tensor.ops.operands import same_bytes
from .sharded_rows import quiet


class ParameterWrites(ABC):
    """Tracks the cell's writes to one parameter.

    Attributes
    ----------
    shape : tuple of int
    dtype : torch.dtype
    nbytes : int
        Of the full parameter.
    rows : Tensor
        This rank's. (r, ...)
    own : slice, Tensor or tuple
        The index of these in the full parameter.
    full : Tensor, optional
        The full parameter, if it is gathered. (R, ...)
    away : Tensor
        The placeholder that the parameter has while its full tensor is freed.
    home : Tensor, optional
        The memory in which it came from the notebook.
    is_lent : bool
        The cell has been given something that shares the full tensor's memory.
    is_set : bool
        The cell has set its ``data``, to memory that other objects may share, perhaps of another type.
    """

    strategy: ClassVar[str] = "zero3"
    """The strategy that messages name."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int
    rows: torch.Tensor
    own: Any
    full: torch.Tensor | None
    away: torch.Tensor
    home: torch.Tensor | None

    def __init__(self) -> None:
        self.is_lent = self.is_set = False
        self._seen = -1  # version of the parameter when its rows were last what it is
        self._data: torch.Tensor | None = None  # what ``parameter.data`` has given, and its version then
        self._data_seen = 0

    @property
    @abstractmethod
    def parameter(self) -> nn.Parameter:
        """The parameter, the object that the cell has."""

    def data(self) -> torch.Tensor:
        """Return ``parameter.data``: writes to it are counted by no version counter of the parameter."""
        self.is_lent = True  # what is made of it may have no count, or another one
        with quiet():
            if self._data is None:
                self._data = self.parameter.data
                self._data_seen = self._data._version
            return self._data

    def data_is_held(self) -> bool:
        """Return whether the cell still references what ``parameter.data`` has returned."""
        return self._data is not None and sys.getrefcount(self._data) > 2

    def has_moved(self) -> bool:
        """Return whether the parameter has other memory or another shape than the full tensor, after ``set_`` or ``t_``."""
        with quiet():
            now, full = self.parameter, self.full
            return full is not None and (
                now.data_ptr() != full.data_ptr() or now.shape != full.shape or now.stride() != full.stride() or now.dtype != full.dtype
            )

    def replaced(self) -> None:
        """Note that the parameter has other memory, because its ``data`` was set.

        Raises
        ------
        RuntimeError
            It has another shape, or is on another device.
        """
        with quiet():
            now = self.parameter.data
            if tuple(now.shape) != self.shape or not (now.is_floating_point() or now.is_complex()) or now.device.type != "cpu":
                self.parameter.data = self.full if self.full is not None else self.away
                raise RuntimeError(
                    f"`--strategy {self.strategy}` shards this parameter, and its `data` was set to a tensor of another shape or device, "
                    "or of integers. Do so in a cell of its own before, or use `--strategy auto`."
                )
            self.full = now
            self._data, self._data_seen = now.detach(), -1  # which counts as written
            self.home, self.is_set = None, True

    def own_memory(self, *, alone: bool) -> None:
        """Move the full tensor to memory of its own if it shares that of another tensor, or is `alone` in a larger storage."""
        with quiet(), torch.inference_mode(mode=False), torch.no_grad():
            assert self.full is not None
            if not alone or not self.full.is_contiguous() or self.full.untyped_storage().nbytes() != self.nbytes:
                self.full = self.full.detach().clone(memory_format=torch.contiguous_format)
                self.parameter.data = self.full
                self._data, self._data_seen = self.full.detach(), -1

    def is_written(self) -> bool:
        """Return whether the parameter has been written to since it was gathered. The answer is the same on all ranks."""
        with quiet():
            return self.full is not None and (self.parameter._version != self._seen or self._is_data_written())

    def _is_data_written(self) -> bool:
        return self._data is not None and self._data._version != self._data_seen

    def mark_written(self) -> None:
        """Count the full tensor as written to: fused optimizers do not increase version counters."""
        self._seen = -1

    @property
    def num_writes(self) -> int:
        """How often the parameter was written to since its rows were last what it is."""
        with quiet():
            return self.parameter._version - self._seen

    def write_back(self) -> None:
        """Copy what was written to the full parameter back to the rows."""
        with quiet(), torch.no_grad():
            assert self.full is not None
            self.rows.copy_(self.full[self.own])
        self.note()

    def note(self) -> None:
        """Note that the rows equal the full parameter."""
        with quiet():
            self._seen = self.parameter._version
            if self._data is not None:
                self._data_seen = self._data._version

    def check(self) -> None:
        """Check that nothing was written, uncounted, to memory that the cell shares.

        Raises
        ------
        RuntimeError
        """
        if self.is_lent and self.full is not None:
            with quiet():
                if not same_bytes(self.full[self.own], self.rows):
                    raise RuntimeError(
                        "The cell wrote to a parameter by NumPy, or in another way that PyTorch does not count, "
                        f"which `--strategy {self.strategy}` cannot follow. Write with `torch.no_grad()`, or use `--strategy auto`."
                    )

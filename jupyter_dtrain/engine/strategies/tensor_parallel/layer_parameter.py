"""A parameter of a linear layer of which each rank has the rows that it computes with, or the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from ...comm.shared_memory import SharedMemory
from ...tensor.placement_types import GlobalTensor
from ...tensor.rank0_guard import all_ranks_come
from ...timing import COMMUNICATION, Counted
from ..zero3.parameter_shard import ParameterShard
from ..zero3.sharded_rows import SharedRows, put_together, quiet
from .column_parallel import Columns, apply, gather


class InPass(Protocol):
    """What is known while a graph is made and gone through; :class:`.LayerStore` is it.

    Attributes
    ----------
    collecting : frozenset of int
        The numbers of parameters whose gradients' rows the backward pass that is under way leaves.
    blocks : dict of int to LayerParameter
        By number, those whose rows for the rank's place a call or a pass has put together.
    """

    collecting: frozenset[int]
    blocks: dict[int, LayerParameter]


class LayerParameter(ParameterShard):
    """A parameter of which each rank computes with its rows, along dim 0 or, of a layer that is divided by what it takes, dim 1."""

    strategy = "tensor"

    def __init__(
        self, parameter: nn.Parameter, storage: SharedRows, *, memory: SharedMemory, columns: Columns, places: Sequence[int], **options: Any
    ) -> None:
        super().__init__(parameter, storage, **options)
        self._memory, self.columns, self._places = memory, columns, places
        self._block: torch.Tensor | None = None  # its rows, and those that other ranks have for it
        with quiet():
            self._alias = self.rows.data  # whose version is the parameter's, for who has computed with it
            self._aged = parameter._version
        self._found: torch.Tensor | None = None  # of the gradient, in a pass

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of the rows to compute with."""
        return self.storage.kind.shape_of(*self._places)

    def part(self) -> torch.Tensor:
        """Return the rows to compute with: the rank's own, and of those that have its place in other groups."""
        if len(self._places) == 1:
            return self._alias.detach()
        if self._block is None:
            with quiet(), torch.no_grad(), Counted(COMMUNICATION):
                full = torch.empty(self.block_shape, dtype=self.dtype)
                self.storage.read_of(self._places, full)
                self._block = self._alias.detach()
                self._block.data = full  # the version goes on to be that of the parameter
        return self._block.detach()

    @property
    def is_packed(self) -> bool:
        """Whether a rank's rows are pieces of what lies behind each other (queries, keys and values)."""
        return self.storage.kind.groups > 1

    def read_gradient(self) -> torch.Tensor | None:
        """Return what the cell sees as ``parameter.grad``: of pieces all of it, which it has from now on. Collective, where it is."""
        if self.is_packed and self._gradient is not None:
            all_ranks_come()
            full = torch.empty(self.shape, dtype=self.dtype)
            put_together(self.storage.kind, self._memory, self._gradient, full)
            self.set_gradient(full)
        return super().read_gradient()

    def has_rows_of(self, value: GlobalTensor) -> bool:
        """Return whether `value` has its rows on the ranks as the parameter has them, which no placement says of pieces."""
        return not self.is_packed and super().has_rows_of(value)

    def forget_block(self) -> None:
        """Have the rank's own rows alone, but for what graphs keep."""
        self._block = None

    def note(self) -> None:
        """Know that the rows are what the parameter is."""
        super().note()
        with quiet():
            if self.parameter._version != self._aged:
                self._aged = self.parameter._version
                self._block = None
                torch.autograd.graph.increment_version(self._alias)

    def replaced(self) -> None:
        """Note that ``parameter.data`` has been set."""
        super().replaced()
        self._block = None
        torch.autograd.graph.increment_version(self._alias)  # who has computed with the rows does not have those that were

    def collect(self, rows: torch.Tensor) -> None:
        """Add to what a pass has found of the rows of the gradient."""
        self._found = rows if self._found is None else self._found + rows

    @property
    def has_collected(self) -> bool:
        """Whether a pass has found any of the gradient."""
        return self._found is not None

    def collected(self) -> torch.Tensor | None:
        """Return what a pass has found of the rows of the gradient, once."""
        found, self._found = self._found, None
        return found


class _Rows(torch.autograd.Function):
    """The rows of a parameter. Their gradient is kept as it is in a pass that leaves rows, and otherwise put together."""

    @staticmethod
    def forward(ctx: Any, _parameter: torch.Tensor, shard: LayerParameter, store: InPass) -> torch.Tensor:
        ctx.shard, ctx.store = shard, store
        ctx.set_materialize_grads(False)
        store.blocks[shard.number] = shard
        return shard.part()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        shard: LayerParameter = ctx.shard
        if gradient is None:
            return None, None, None
        if shard.number in ctx.store.collecting and not torch.is_grad_enabled():
            shard.collect(gradient)
            return None, None, None
        return gather(gradient, shard.columns, shard.dim), None, None


def rows_of(parameter: torch.Tensor, shard: LayerParameter, store: InPass) -> torch.Tensor:
    """Return the rows of a parameter that the rank computes with, with their place in the graph."""
    result: torch.Tensor = apply(_Rows, parameter, shard, store)
    return result

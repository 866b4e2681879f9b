"""A parameter of a linear layer, sharded by the rows or columns that each rank computes with."""

from __future__ import annotations

import weakref
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
    """State of the forward or backward pass under way: a :class:`.LayerStore`.

    Attributes
    ----------
    collecting : frozenset of int
        The numbers of the parameters whose gradients the backward pass under way leaves in rows.
    blocks : dict of int to LayerParameter
        By number, the parameters whose rows for this rank's place a call or a pass has gathered from other groups.
    """

    collecting: frozenset[int]
    blocks: dict[int, LayerParameter]


class LayerParameter(ParameterShard):
    """A parameter of which each rank computes with a shard: along dim 0 (column-parallel), or dim 1 (row-parallel)."""

    strategy = "tensor"

    def __init__(
        self, parameter: nn.Parameter, storage: SharedRows, *, memory: SharedMemory, columns: Columns, places: Sequence[int], **options: Any
    ) -> None:
        self._block: torch.Tensor | None = None  # its rows, and those that other ranks have for it
        super().__init__(parameter, storage, **options)
        self._memory, self.columns, self._places = memory, columns, places
        with quiet():
            self._aged = parameter._version
        self._found: torch.Tensor | None = None  # of the gradient, in a pass

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of the shard to compute with."""
        return self.storage.kind.shape_of(*self._places)

    def part(self) -> torch.Tensor:
        """Return the shard to compute with: the rank's own rows, and those of its place in the other groups."""
        if len(self._places) == 1:
            return self._alias.detach()
        if self._block is None:
            with quiet(), torch.inference_mode(mode=False), torch.no_grad(), Counted(COMMUNICATION):
                full = torch.empty(self.block_shape, dtype=self.dtype, device="cpu")
                self.storage.read_of(self._places, full)
                self._block = self._alias.detach()
                self._block.data = full  # the version goes on to be that of the parameter
        return self._block.detach()

    @property
    def is_packed(self) -> bool:
        """Whether the parameter is several stacked ones (queries, keys and values), each of them sharded."""
        return self.storage.kind.groups > 1

    def read_gradient(self) -> torch.Tensor | None:
        """Return what the cell gets as ``parameter.grad``: a full tensor, from now on, for a stacked parameter. Collective for such."""
        if self.is_packed and self._gradient is not None:
            all_ranks_come()
            with torch.inference_mode(mode=False):
                full = torch.empty(self.shape, dtype=self.dtype, device="cpu")
            put_together(self.storage.kind, self._memory, self._gradient, full)
            self.set_gradient(full)
        return super().read_gradient()

    def has_rows_of(self, value: GlobalTensor) -> bool:
        """Return whether `value` is sharded as the parameter is. No placement says so for a stacked parameter."""
        return not self.is_packed and super().has_rows_of(value)

    def store_in(self, storage: SharedRows) -> None:
        """Have the rows in `storage` from now on."""
        super().store_in(storage)
        self._block = None
        with quiet():
            self._alias = self.rows.data  # whose version is the parameter's, for who has computed with it

    def forget_block(self) -> None:
        """Free the rows of other groups, except those that autograd graphs have saved."""
        self._block = None

    def note(self) -> None:
        """Note that the rows equal the full parameter."""
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
        """Add to the rows of the gradient that a pass has collected."""
        self._found = rows if self._found is None else self._found + rows

    @property
    def has_collected(self) -> bool:
        """Whether a pass has collected any of the gradient."""
        return self._found is not None

    def collected(self) -> torch.Tensor | None:
        """Return the rows of the gradient that a pass has collected, and forget them."""
        found, self._found = self._found, None
        return found


class _Rows(torch.autograd.Function):
    """Autograd function: the shard of a parameter. Its gradient stays a shard in a pass that leaves rows, and is gathered otherwise."""

    @staticmethod
    def forward(ctx: Any, _parameter: torch.Tensor, shard: LayerParameter, store: InPass) -> torch.Tensor:
        ctx.shard, ctx.store = shard, weakref.ref(store)  # a loss that the cell keeps would keep all of the run
        ctx.set_materialize_grads(False)
        store.blocks[shard.number] = shard
        return shard.part()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        shard: LayerParameter = ctx.shard
        if gradient is None:
            return None, None, None
        store = ctx.store()
        if store is not None and shard.number in store.collecting and not torch.is_grad_enabled():
            shard.collect(gradient)
            return None, None, None
        return gather(gradient, shard.columns, shard.dim), None, None


def rows_of(parameter: torch.Tensor, shard: LayerParameter, store: InPass) -> torch.Tensor:
    """Return the shard of a parameter that this rank computes with, connected to the autograd graph."""
    result: torch.Tensor = apply(_Rows, parameter, shard, store)
    return result

"""The linear layers of models, by columns: a rank has as many rows of a layer's weight, and computes these of its results.

What the cell does with parameters, gradients and optimizers is followed by what follows it for `zero3`. Only ``F.linear`` in a model's call
is another one: it fetches nothing, and exchanges results instead. Whatever else reads a parameter there gets all of it, and computes the
same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ...comm.batch_ranks import BatchRanks
from ...comm.shared_memory import SharedMemory
from ...comm.transforms import in_transform
from ...module_tree import modules_in
from ...tensor.rank0_guard import alone_now
from ...timing import COMMUNICATION, Counted
from ..zero3.parameter import ParameterShard
from ..zero3.parameter_store import ParameterStore
from ..zero3.sharded_rows import SharedRows, quiet
from .column_parallel import Columns, apply, copy, gather, split
from .replicated_training import check_same


class LayerParameter(ParameterShard):
    """A parameter of which each rank computes with its rows."""

    strategy = "tensor"

    def __init__(self, parameter: nn.Parameter, storage: SharedRows, *, columns: Columns, places: Sequence[int], **options: Any) -> None:
        super().__init__(parameter, storage, **options)
        self.columns, self._places = columns, places
        self._block: torch.Tensor | None = None  # its rows, and those that other ranks have for it
        with quiet():
            self._alias = self.rows.data  # whose version is the parameter's, for who has computed with it
            self._aged = parameter._version
        self._found: torch.Tensor | None = None  # of the gradient, in a pass

    def part(self) -> torch.Tensor:
        """Return the rows to compute with: the rank's own, and of those that have its place in other groups."""
        if len(self._places) == 1:
            return self._alias.detach()
        if self._block is None:
            with quiet(), torch.no_grad(), Counted(COMMUNICATION):
                num_rows = sum(size for _, size in self.columns.pieces)
                full = torch.empty((num_rows, *self.shape[1:]), dtype=self.dtype)
                self.storage.read_of(self._places, full)
                self._block = self._alias.detach()
                self._block.data = full  # the version goes on to be that of the parameter
        return self._block.detach()

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

    def collected(self) -> torch.Tensor | None:
        """Return what a pass has found of the rows of the gradient, once."""
        found, self._found = self._found, None
        return found


class _Rows(torch.autograd.Function):
    """The rows of a parameter. Their gradient is kept as it is in a pass that leaves rows, and otherwise put together."""

    @staticmethod
    def forward(ctx: Any, _parameter: torch.Tensor, shard: LayerParameter, store: LayerStore) -> torch.Tensor:
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
        return gather(gradient, shard.columns, 0), None, None


class LayerStore(ParameterStore):
    """The parameters of the linear layers of one rank.

    Parameters
    ----------
    memory : SharedMemory
        Connects all ranks.
    batches : BatchRanks, optional
        The groups over which batches are sharded, and within which layers are divided. ``None``: there is one group.
    options
        As of :class:`.ParameterStore`.

    Attributes
    ----------
    collecting : frozenset of int
        The numbers of those whose gradients' rows the backward pass that is under way leaves; `in_pass`: one is.
    blocks : dict of int to LayerParameter
        By number, those whose rows for the rank's place a call or a pass has put together.
    """

    strategy = "tensor"

    def __init__(self, memory: SharedMemory, *, batches: BatchRanks | None = None, **options: Any) -> None:
        super().__init__(memory, **options)
        self._alike = memory if batches is None else batches.alike
        self._places = [memory.rank] if batches is None else batches.of_place(batches.alike.rank)
        self.collecting: frozenset[int] = frozenset()
        self.in_pass = False
        self.blocks: dict[int, LayerParameter] = {}  # what was computed with, by number
        self._layers: set[int] = set()  # parameters to divide, by their ``id``
        self._told: set[int] = set()
        self._is_entering, self._is_alone, self._num_inside = False, False, 0

    # -- which -------------------------------------------------------------------------------------------------------

    def adopt(self, module: nn.Module) -> None:
        """Divide the linear layers of `module`. Collective, where there are any that are not known."""
        if self._known.get(module):
            return
        is_large = super()._is_wanted
        layers = [[*part.parameters(recurse=False)] for part in modules_in(module) if is_linear(part)]
        self._layers = {id(parameter) for weight, *bias in layers if is_large(weight) for parameter in (weight, *bias)}
        super().adopt(module)
        known = self._layers | self._told
        named: list[tuple[str, Any]] = list(module.named_parameters())
        rest = [(name, p) for name, p in named if id(p) not in known and not is_lazy(p) and is_large(p)]
        self._told |= {id(parameter) for _, parameter in rest}
        few = [name for name, p in named if id(p) in self._layers and is_large(p) and p.shape[0] < self.world_size]
        self._tell(module, [(name, "only linear layers are divided") for name, _ in rest])
        self._tell(module, [(name, "they have fewer rows than there are engines") for name in few])

    @property
    def has_divided(self) -> bool:
        """Whether there was any layer to divide."""
        return self._number > 0

    def _is_wanted(self, parameter: nn.Parameter) -> bool:
        return parameter.dim() > 0 and id(parameter) in self._layers

    def _new_shard(self, parameter: nn.Parameter, storage: SharedRows, **options: Any) -> ParameterShard:
        columns = Columns(self._alike, [share.num_samples for share in storage.kind.shares])
        return LayerParameter(parameter, storage, columns=columns, places=self._places, **options)

    def sweep(self, keep: Sequence[ParameterShard] = ()) -> None:
        """Let go what nobody needs."""
        super().sweep(keep)
        if not self.depth and not self.in_pass:
            for shard in self.blocks.values():
                shard.forget_block()
            self.blocks.clear()

    # -- in models ---------------------------------------------------------------------------------------------------

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Let a model be called by the cell, until the end of the ``with`` block."""
        self._is_entering = not self.depth
        with super().calling():
            yield

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the call of a module in a model, which fetches no parameters. Collective, where the cell calls it."""
        if self._is_entering:
            self._is_entering = False
            self._is_alone = alone_now()
            if self.has_divided and not self._is_alone and _is_plain():
                check_same((args, kwargs), f"inputs of `{type(module).__name__}`", self._alike)
        self._num_inside += 1
        try:
            return original(module, *args, **kwargs)
        finally:
            self._num_inside -= 1

    def linear(self, given: Any, weight: Any, bias: Any = None) -> torch.Tensor | None:
        """Return ``F.linear`` of a replicated value, of which each rank computes its columns; ``None``: who asks has to fetch them."""
        shard = self.shard_of(weight)
        is_inside = self.depth or self._num_inside or self.in_pass
        if not isinstance(shard, LayerParameter) or shard.uses or not is_inside or self._is_alone or not _is_plain():
            return None
        if type(given) not in (torch.Tensor, nn.Parameter) or not given.dim() or given.shape[-1] != shard.shape[1]:
            return None
        columns = shard.columns
        rows = apply(_Rows, weight, shard, self)
        return gather(nn.functional.linear(copy(given, columns), rows, self._own(bias, columns)), columns)

    def _own(self, bias: torch.Tensor | None, columns: Columns) -> torch.Tensor | None:
        """Return the rank's part of a bias."""
        shard = self.shard_of(bias)
        if isinstance(shard, LayerParameter) and not shard.uses and bias is not None:
            rows: torch.Tensor = apply(_Rows, bias, shard, self)
            return rows
        return None if bias is None else split(bias, columns, 0)


def is_linear(module: nn.Module) -> bool:
    """Return whether `module` computes ``F.linear`` of its own parameters and nothing else."""
    return (
        isinstance(module, nn.Linear)
        and type(module).forward is nn.Linear.forward
        and "forward" not in vars(module)
        and not isinstance(module, NonDynamicallyQuantizableLinear)  # of attention, which reads its weight
        and isinstance(module._parameters.get("weight"), nn.Parameter)
        and not is_lazy(module.weight)
    )


def _is_plain() -> bool:
    """Return whether nobody looks at each operation, who would see the rank's and no one process's."""
    return not in_transform() and _get_current_dispatch_mode() is None and torch._C._get_tracing_state() is None

"""Column-parallel and row-parallel linear layers of models.

A rank has some rows of a layer's weight, and computes these columns of its output. Of two layers that belong together (:mod:`.rules`) the
second is row-parallel: a rank has the columns of its weight for the part of the first output that it has computed, and the outputs are
all-reduced (:mod:`.pairs`).

Operations of the cell on parameters, gradients and optimizers are handled as for `zero3`. Only ``F.linear`` in a model's call differs: it
gathers no parameter, and exchanges results instead. Other code of the model that reads a parameter gets the full tensor, and computes the
same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ...comm.batch_ranks import BatchRanks
from ...comm.shared_memory import SharedMemory
from ...comm.transforms import in_transform
from ...forward.module_state import may_write
from ...tensor.rank0_guard import alone_now
from ..zero3.eligibility import why_replicated
from ..zero3.parameter_shard import ParameterShard
from ..zero3.sharded_rows import SharedRows
from .attention import AttentionCalls
from .autocast_cache import AutocastCache
from .column_parallel import Columns, gather, reduce, split
from .layer_parameter import LayerParameter, rows_of
from .layer_registry import LayerRegistry
from .linear_layers import is_value
from .pairs import PairCalls
from .precision import Entered, enter, precision_for
from .replicated_training import check_same


class LayerStore(LayerRegistry):
    """The sharded linear layers of one rank.

    Parameters
    ----------
    memory : SharedMemory
        Connects all ranks.
    batches : BatchRanks, optional
        The groups over which batches are sharded, and within which layers are. ``None``: there is one group.
    options
        As of :class:`.LayerRegistry`.

    Attributes
    ----------
    collecting : frozenset of int
        The numbers of the parameters whose gradients the backward pass under way leaves in rows; `in_pass`: there is such a pass.
    blocks : dict of int to LayerParameter
        By number, the parameters whose rows for this rank's place a call or a pass has gathered from other groups.
    """

    def __init__(self, memory: SharedMemory, *, batches: BatchRanks | None = None, **options: Any) -> None:
        super().__init__(memory, **options)
        # Groups have different batches, of which a model may compute what it writes.
        self.why_replicated = partial(why_replicated, may_write=None if batches is None else may_write)
        self._alike = memory if batches is None else batches.alike
        self._places = [memory.rank] if batches is None else batches.of_place(batches.alike.rank)
        self.collecting: frozenset[int] = frozenset()
        self.in_pass = False
        self.blocks: dict[int, LayerParameter] = {}  # what was computed with, by number
        self.attention = AttentionCalls(self)
        self._pairs = PairCalls(self)
        self.autocast = AutocastCache(self._say)
        self._is_entering, self._is_alone, self._is_in_cell, self._num_inside = False, False, False, 0

    @property
    def has_groups(self) -> bool:
        """Whether there are several groups of ranks, with different samples."""
        return len(self._places) > 1

    @property
    def has_divided(self) -> bool:
        """Whether any layer is sharded."""
        return self._number > 0

    def _new_shard(self, parameter: nn.Parameter, storage: SharedRows, **options: Any) -> ParameterShard:
        kind = storage.kind
        columns = Columns(self._alike, [share.num_samples for share in kind.shares] * kind.groups)
        return LayerParameter(parameter, storage, memory=self.memory, columns=columns, places=self._places, **options)

    def sweep(self, keep: Sequence[ParameterShard] = ()) -> None:
        """Free the full tensors that are not in use, except those in `keep`."""
        super().sweep(keep)
        if not self.depth and not self.in_pass:
            self._pool.trim(0)  # layers fetch nothing: what was there whole is not soon needed again
            for shard in self.blocks.values():
                shard.forget_block()
            self.blocks.clear()

    def as_now(self, given: Iterable[Any]) -> Callable[[], AbstractContextManager[None]]:
        """Do as the base class: code of the cell gets full parameters, code of models computes with shards."""
        is_in_cell = not self._is_inside
        whole = [shard for value in given if (shard := self.shard_of(value)) is not None and (shard.uses or is_in_cell)]

        @contextmanager
        def again() -> Iterator[None]:
            before, self._is_in_cell = self._is_in_cell, is_in_cell
            try:
                with self.in_use(whole):
                    yield
            finally:
                self._is_in_cell = before

        return again

    # -- in models ---------------------------------------------------------------------------------------------------

    @contextmanager
    def calling(self, module: nn.Module) -> Iterator[None]:
        """Follow a call of a model by the cell, in the ``with`` block."""
        self._is_entering = not self.depth
        with super().calling(module):
            yield

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the call of a module in a model; it gathers no parameters. Collective, where the cell calls it."""
        if self._is_entering:
            self._is_entering = False
            self._is_alone = alone_now()
            if self.has_divided:
                self.autocast.note_call()
            if self.has_divided and not self._is_alone and _is_plain():
                check_same((args, kwargs), f"inputs of `{type(module).__name__}`", self._alike)
        self._num_inside += 1
        try:
            return self._pairs.call(original, module, args, kwargs)
        finally:
            self._num_inside -= 1

    def linear(self, given: Any, weight: Any, bias: Any = None) -> torch.Tensor | None:
        """Return ``F.linear`` of a replicated value, computed by columns or rows; ``None`` if the weight has to be gathered instead."""
        shard = self.divided(weight)
        if shard is None or not is_value(given, shard.shape[1]):
            return None
        if shard.dim:
            return self.by_rows(split(given, shard.columns), weight, shard, bias)
        return gather(self.by_columns(enter(given, shard.columns), weight, shard, bias), shard.columns)

    @property
    def _is_inside(self) -> bool:
        """Whether code of a model runs, in its call or recomputed in a backward pass."""
        return bool(self.depth or self._num_inside or (self.in_pass and not self._is_in_cell))

    def divided(self, weight: Any) -> LayerParameter | None:
        """Return the shard of a weight if the ranks are to compute with shards now."""
        shard = self.shard_of(weight)
        if not isinstance(shard, LayerParameter) or shard.uses or not self._is_inside or self._is_alone or not _is_plain():
            return None
        return None if shard.is_written() else shard  # the rows are not what it is

    def by_columns(self, given: Entered, weight: torch.Tensor, shard: LayerParameter, bias: torch.Tensor | None) -> torch.Tensor:
        """Return this rank's columns of ``F.linear`` of a value from :func:`enter`."""
        precision = given.precision
        rows = rows_of(weight, shard, self)
        rows = rows.t() if shard.dim else rows  # of a weight that is transposed
        return precision.result(precision.linear(given.value, rows, self.own_bias(bias, shard.columns)))

    def by_rows(self, given: torch.Tensor, weight: torch.Tensor, shard: LayerParameter, bias: torch.Tensor | None) -> torch.Tensor:
        """Return ``F.linear`` of a local value, the rank's columns of the input. Collective."""
        precision = precision_for(given)
        rows = rows_of(weight, shard, self)
        rows = rows if shard.dim else rows.t()
        result = reduce(precision.linear(precision.operand(given), rows), shard.columns)
        if bias is not None:
            result = result + precision.operand(bias).to(result.dtype)
        return precision.result(result)

    def own_bias(self, bias: torch.Tensor | None, columns: Columns) -> torch.Tensor | None:
        """Return the rank's part of a bias."""
        shard = self.shard_of(bias)
        if isinstance(shard, LayerParameter) and not shard.uses and not shard.is_written() and bias is not None:
            return rows_of(bias, shard, self)
        return None if bias is None else split(bias, columns, 0)


def _is_plain() -> bool:
    """Return whether no mode or transform observes operations: it would see those of a rank, and not one process's."""
    return not in_transform() and _get_current_dispatch_mode() is None and torch._C._get_tracing_state() is None

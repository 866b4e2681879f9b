"""Linear layers by columns in groups of ranks beside each other (``--mesh dp=2,tp=2``).

The rows of a parameter, of its gradient and of what optimizers keep of it are sharded over all ranks, as under `zero3`. For a model's call
a rank fetches the rows of its columns alone. Outside the door, and in models that are not computed by groups, all is as under `zero3`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ...comm.mesh import Mesh
from ...comm.process_group import shared_memory_among
from ...comm.shared_memory import SharedMemory
from ...forward.sharded_call import ShardedCall
from ...module_tree import modules_in
from ..data_parallel.training import DataParallelTraining
from ..zero3.gradients import ShardedGradients
from ..zero3.parameter import ParameterShard
from ..zero3.rows import SharedRows, quiet
from ..zero3.sharded_training import ShardedTraining
from ..zero3.store import LEAST
from .columns import Columns
from .door import Door, why_not
from .layer_training import LayerAccess
from .layers import LayerParameter, LayerStore

AXIS = "tp"
_ASKED_FOR = re.compile(r"create_graph|torch\.func")


class GroupedParameter(LayerParameter):
    """A parameter whose rows lie on all ranks; one computes with those of its columns."""

    def __init__(self, parameter: nn.Parameter, storage: SharedRows, *, columns: Columns, **options: Any) -> None:
        with quiet(), torch.no_grad():
            block = columns.own(parameter.detach(), 0)
        super().__init__(parameter, storage, columns=columns, **options)
        self._alias, self._is_old = block, False

    def part(self) -> torch.Tensor:
        """Return the rows to compute with."""
        if self._is_old:
            with quiet(), torch.no_grad():
                now = torch.empty_like(self._alias)
                self.storage.read_part(now, self.columns.start)
                if not torch.equal(now.view(-1).view(torch.uint8), self._alias.view(-1).view(torch.uint8)):
                    self._alias.copy_(now)
            self._is_old = False
        return super().part()

    def note(self) -> None:
        """Know that the rows are what the parameter is."""
        super().note()
        self._is_old = True

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a gradient of all rows from those of its columns, which this rank alone has of its group."""
        full = rows.new_zeros(self.shape)
        full[self.columns.start : self.columns.start + self.columns.size] = rows * self.columns.num_ranks
        return full


class GroupedStore(LayerStore):
    """The parameters of linear layers, whose columns the ranks of a group compute.

    Parameters
    ----------
    mesh : Mesh
    off : str, optional
        What of the cell it is for which nothing is computed by columns.
    """

    def __init__(self, memory: SharedMemory, *, mesh: Mesh, off: str | None = None, **options: Any) -> None:
        super().__init__(memory, **options)
        ranks = mesh.ranks_along(AXIS)
        self._group, self._num_groups, self._off = shared_memory_among(ranks), memory.num_ranks // len(ranks), off
        self.door = Door(self._group, ranks)
        self._why: set[str] = set()
        self.num_by_columns = 0

    def _new_shard(self, parameter: nn.Parameter, storage: SharedRows, **options: Any) -> ParameterShard:
        sizes = [share.num_samples for share in storage.kind.shares]
        blocks = [sum(sizes[start : start + self._num_groups]) for start in range(0, len(sizes), self._num_groups)]
        return GroupedParameter(parameter, storage, columns=Columns(self._group, blocks), **options)

    def computed_by(self, sharded: ShardedCall) -> Callable[[Any], Any]:
        """Return what makes a model's call: the group, on its rows, or the rank by itself."""
        module = sharded.module
        if not sharded.placement.share.total or not any(
            isinstance(self.shard_of(p), GroupedParameter) for part in modules_in(module) for p in part.parameters(recurse=False)
        ):
            return sharded.own_call
        why = f"the cell has {self._off}" if self._off is not None else why_not(sharded)
        if why:
            self._tell_why(module, why)
            return sharded.own_call
        self.num_by_columns += 1
        return partial(self.door.call, sharded)

    def repeats(self, sharded: ShardedCall) -> bool:
        """Return whether a call is a first one, by the rank alone: the group makes it again, as it makes later ones."""
        return sharded.is_first and self.computed_by(sharded) != sharded.own_call

    def on_full_batch(self, module: nn.Module) -> None:
        """Say that a model is not computed by columns."""
        if self.has_divided:
            self._tell_why(module, "its `forward` is to see all of a batch")

    def _tell_why(self, module: nn.Module, why: str) -> None:
        text = f"`--strategy tensor` computes no columns of `{type(module).__name__}` by groups, and each engine fetches its layers: {why}."
        if text not in self._why:
            self._why.add(text)
            self._say(text)

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the call of a module in a model, which fetches no parameters."""
        return original(module, *args, **kwargs)

    def linear(self, given: Any, weight: Any, bias: Any = None) -> torch.Tensor | None:
        """Return ``F.linear`` of rows that the group has alike; ``None``: who asks has to fetch what it computes with."""
        return super().linear(given, weight, bias) if self.door.is_inside else None


class GroupedTraining(ShardedTraining):
    """The layers of what a rank trains, whose columns groups of ranks compute.

    Parameters
    ----------
    training, memory, say, least, homes, arrived
        As of :class:`.ShardedTraining`.
    mesh : Mesh
    source : str
        The cell, which may go through graphs in a way that groups do not.
    """

    access_class = LayerAccess
    store: GroupedStore

    def __init__(
        self,
        training: DataParallelTraining,
        memory: SharedMemory,
        *,
        mesh: Mesh,
        source: str = "",
        say: Callable[[str], None] = lambda _: None,
        least: int = LEAST,
        homes: Collection[int] = (),
        arrived: Sequence[object] = (),
    ) -> None:
        asked_for = _ASKED_FOR.search(source)
        off = None if asked_for is None else f"`{asked_for[0]}`"
        store = GroupedStore(memory, mesh=mesh, off=off, say=say, least=least, homes=homes)
        self._connect(training, store, ShardedGradients(store), say=say, arrived=arrived)

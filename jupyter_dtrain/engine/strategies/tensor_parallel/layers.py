"""The linear layers of models, by columns: a rank has as many rows of a layer's weight, and computes these of its results.

Of two layers that belong together (:mod:`.rules`) the second is divided by rows instead: a rank has the columns of its weight that belong
to the numbers that it has of the first one's results, and the ranks add up what they come to (:mod:`.pairs`).

What the cell does with parameters, gradients and optimizers is followed by what follows it for `zero3`. Only ``F.linear`` in a model's call
is another one: it fetches nothing, and exchanges results instead. Whatever else reads a parameter there gets all of it, and computes the
same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ....shard_patterns import ShardPattern
from ...comm.batch_ranks import BatchRanks
from ...comm.shared_memory import SharedMemory
from ...comm.transforms import in_transform
from ...module_tree import modules_in
from ...tensor.rank0_guard import alone_now
from ..zero3.eligibility import why_replicated
from ..zero3.parameter_shard import ParameterShard
from ..zero3.parameter_store import ParameterStore
from ..zero3.sharded_rows import SharedRows
from .column_parallel import Columns, gather, reduce, split
from .layer_parameter import LayerParameter, rows_of
from .linear_layers import is_linear, is_value
from .named_shards import NamedShards
from .pairs import PairCalls, is_worth_it
from .precision import Entered, enter, precision_for
from .replicated_training import check_same
from .rules import pairs_of, planned_pairs, rule_of


class LayerStore(ParameterStore):
    """The parameters of the linear layers of one rank.

    Parameters
    ----------
    memory : SharedMemory
        Connects all ranks.
    batches : BatchRanks, optional
        The groups over which batches are sharded, and within which layers are divided. ``None``: there is one group.
    patterns : sequence of ShardPattern
        How parameters are divided that these name.
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

    def __init__(
        self, memory: SharedMemory, *, batches: BatchRanks | None = None, patterns: Sequence[ShardPattern] = (), **options: Any
    ) -> None:
        super().__init__(memory, **options)
        self.named = NamedShards(patterns)
        if batches is None:  # groups have different batches, of which a model may compute what it writes
            self.why_replicated = partial(why_replicated, follows_writes=True)
        self._alike = memory if batches is None else batches.alike
        self._places = [memory.rank] if batches is None else batches.of_place(batches.alike.rank)
        self.collecting: frozenset[int] = frozenset()
        self.in_pass = False
        self.blocks: dict[int, LayerParameter] = {}  # what was computed with, by number
        self._layers: set[int] = set()  # parameters to divide, by their ``id``
        self._by_rows: set[int] = set()  # weights among them that are divided along dim 1
        self._pairs = PairCalls(self)
        self._told: set[int] = set()
        self._is_entering, self._is_alone, self._num_inside = False, False, 0

    # -- which -------------------------------------------------------------------------------------------------------

    def adopt(self, module: nn.Module) -> None:
        """Divide the linear layers of `module`. Collective, where there are any that are not known."""
        if self._known.get(module):
            return
        self.named.look(module)
        is_large = self._is_large
        layers = [[*part.parameters(recurse=False)] for part in modules_in(module) if is_linear(part)]
        self._layers = {id(parameter) for weight, *bias in layers if is_large(weight) for parameter in (weight, *bias)}
        whole = self._find_pairs(module) | self._follow_names(module)
        super().adopt(module)
        known = self._layers | self._told | whole
        named: list[tuple[str, Any]] = list(module.named_parameters())
        rest = [(name, p) for name, p in named if id(p) not in known and not is_lazy(p) and is_large(p)]
        self._told |= {id(parameter) for _, parameter in rest}
        few = [name for name, p in named if id(p) in self._layers and is_large(p) and p.shape[self._dim(p)] < self.world_size]
        self._tell(module, [(name, "only linear layers are divided") for name, _ in rest])
        self._tell(module, [(name, "they have fewer rows than there are engines") for name in few])

    def _is_large(self, parameter: nn.Parameter) -> bool:
        """Return whether a parameter is worth it, or named."""
        how = self.named.how(parameter)
        return super()._is_wanted(parameter) if how is None else how != "no" and parameter.dim() > (how == "row")

    def _follow_names(self, module: nn.Module) -> set[int]:
        """Have parameters be divided as they are named to be; return the ``id`` of those that are to be whole."""
        whole: set[int] = set()
        for part in modules_in(module):
            for name, parameter in part._parameters.items():
                how = None if parameter is None else self.named.how(parameter)
                is_added = name == "bias" and is_linear(part) and id(part.weight) in self._by_rows  # where all is added up
                if parameter is None or (how is None and not is_added):
                    continue
                if is_added or not self._is_large(parameter):
                    whole.add(id(parameter))
                else:
                    self._layers.add(id(parameter))
                    (self._by_rows.add if how == "row" else self._by_rows.discard)(id(parameter))
        self._layers -= whole
        return whole

    def _find_pairs(self, module: nn.Module) -> set[int]:
        """Have the second layers of pairs be divided by rows; return the ``id`` of their biases, which are added where all is added up."""
        biases: set[int] = set()
        taken: set[int] = set()  # a weight has one place
        by_rule = [(part, pair) for part in modules_in(module) for pair in pairs_of(part)]
        planned = [(part, pair) for part, pair in planned_pairs(module) if rule_of(part) is None]
        for part, pair in (*by_rule, *planned):
            layers = (*pair.firsts, pair.second)
            weights: list[Any] = [layer.weight for layer in layers if is_linear(layer)]
            if len(weights) < len(layers) or not self._is_large(weights[0]) or not is_worth_it(weights, self.world_size, pair.heads):
                continue
            if not self.named.allows(weights[-1], "row") or not all(self.named.allows(weight, "col") for weight in weights[:-1]):
                continue
            ids = {id(weight) for weight in weights}
            if len(ids) < len(weights) or ids & taken or any(self.shard_of(weight) is not None for weight in weights):
                continue
            taken |= ids
            self._by_rows.add(id(weights[-1]))
            self._layers |= ids
            biases |= {id(bias) for bias in pair.second._parameters.values() if bias is not None and id(bias) not in ids}
            self._pairs.know(part, pair if rule_of(part) is None else None)
        biases -= {id(part.bias) for part in modules_in(module) if is_linear(part) and id(part.weight) not in self._by_rows}
        self._layers -= biases
        return biases

    def _dim(self, parameter: nn.Parameter) -> int:
        return int(id(parameter) in self._by_rows)

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
            return self._pairs.call(original, module, args, kwargs)
        finally:
            self._num_inside -= 1

    def linear(self, given: Any, weight: Any, bias: Any = None) -> torch.Tensor | None:
        """Return ``F.linear`` of a replicated value, of which each rank computes its columns; ``None``: who asks has to fetch them."""
        shard = self.divided(weight)
        if shard is None or not is_value(given, shard.shape[1]):
            return None
        if shard.dim:
            return self.by_rows(split(given, shard.columns), weight, shard, bias)
        return gather(self.by_columns(enter(given, shard.columns), weight, shard, bias), shard.columns)

    def divided(self, weight: Any) -> LayerParameter | None:
        """Return the shard of a weight that the ranks are to compute with now, each with its part."""
        shard = self.shard_of(weight)
        is_inside = self.depth or self._num_inside or self.in_pass
        if not isinstance(shard, LayerParameter) or shard.uses or not is_inside or self._is_alone or not _is_plain():
            return None
        return None if shard.is_written() else shard  # the rows are not what it is

    def by_columns(self, given: Entered, weight: torch.Tensor, shard: LayerParameter, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the rank's columns of ``F.linear`` of a value from :func:`enter`."""
        precision = given.precision
        return precision.result(precision.linear(given.value, rows_of(weight, shard, self), self._own(bias, shard.columns)))

    def by_rows(self, given: torch.Tensor, weight: torch.Tensor, shard: LayerParameter, bias: torch.Tensor | None) -> torch.Tensor:
        """Return ``F.linear`` of a value of which each rank has its columns. Collective."""
        precision = precision_for(given)
        result = reduce(precision.linear(precision.operand(given), rows_of(weight, shard, self)), shard.columns)
        if bias is not None:
            result = result + precision.operand(bias).to(result.dtype)
        return precision.result(result)

    def _own(self, bias: torch.Tensor | None, columns: Columns) -> torch.Tensor | None:
        """Return the rank's part of a bias."""
        shard = self.shard_of(bias)
        if isinstance(shard, LayerParameter) and not shard.uses and not shard.is_written() and bias is not None:
            return rows_of(bias, shard, self)
        return None if bias is None else split(bias, columns, 0)


def _is_plain() -> bool:
    """Return whether nobody looks at each operation, who would see the rank's and no one process's."""
    return not in_transform() and _get_current_dispatch_mode() is None and torch._C._get_tracing_state() is None

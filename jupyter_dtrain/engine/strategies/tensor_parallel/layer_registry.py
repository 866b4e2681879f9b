"""Which parameters are sharded, along which dim: of linear layers, alone or in pairs, of attention, and what ``--shard`` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from ....shard_patterns import ShardPattern
from ...comm.shared_memory import SharedMemory
from ...module_tree import modules_in
from ..zero3.parameter_store import ParameterStore
from .linear_layers import is_linear, is_transposed
from .named_shards import NamedShards
from .pairs import PairCalls, dims_of, is_worth_it
from .rules import Heads, heads_of, pairs_of, planned_pairs, rule_of


class LayerRegistry(ParameterStore):
    """The sharded parameters of one rank.

    Parameters
    ----------
    memory : SharedMemory
        Connects all ranks.
    patterns : sequence of ShardPattern
        How the parameters that they name are sharded.
    options
        As of :class:`.ParameterStore`.
    """

    strategy = "tensor"
    _pairs: PairCalls

    def __init__(self, memory: SharedMemory, *, patterns: Sequence[ShardPattern] = (), **options: Any) -> None:
        super().__init__(memory, **options)
        self.named = NamedShards(patterns)
        self._layers: set[int] = set()  # parameters to divide, by their ``id``
        self._by_rows: set[int] = set()  # weights among them that are divided along dim 1
        self._groups_of: dict[int, int] = {}  # of parameters among them that are several behind each other
        self._told: set[int] = set()

    def adopt(self, module: nn.Module) -> None:
        """Shard the linear layers of `module`. Collective, where there are any new ones."""
        if self._known.get(module):
            return
        self.named.look(module)
        self._groups_of.clear()
        is_large = self._is_large
        layers = [[*part.parameters(recurse=False)] for part in modules_in(module) if is_linear(part)]
        self._layers = {id(parameter) for weight, *bias in layers if is_large(weight) for parameter in (weight, *bias)}
        why_not: dict[int, str] = {}
        whole = self._find_pairs(module) | self._find_heads(module, why_not)
        whole |= self._follow_names(module)
        super().adopt(module)
        known = self._layers | self._told | whole
        named: list[tuple[str, Any]] = list(module.named_parameters())
        rest = [(name, p) for name, p in named if id(p) not in known and not is_lazy(p) and is_large(p)]
        self._told |= {id(parameter) for _, parameter in rest}
        few = [name for name, p in named if id(p) in self._layers and is_large(p) and p.shape[self._dim(p)] < self.world_size]
        self._tell(module, [(name, why_not.get(id(p), "only linear layers are divided")) for name, p in rest])
        self._tell(module, [(name, "they have fewer rows than there are engines") for name in few])

    def _is_large(self, parameter: nn.Parameter) -> bool:
        """Return whether a parameter is large enough, or named."""
        how = self.named.how(parameter)
        return super()._is_wanted(parameter) if how is None else how != "no" and parameter.dim() > (how == "row")

    def _follow_names(self, module: nn.Module) -> set[int]:
        """Shard named parameters as their patterns say; return the ``id`` of those that are to be replicated."""
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
        """Shard the second layers of pairs by rows; return the ``id`` of their biases, which are added after the all-reduce."""
        biases: set[int] = set()
        taken: set[int] = set()  # a weight has one place
        by_rule = [(part, pair) for part in modules_in(module) for pair in pairs_of(part)]
        planned = [(part, pair) for part, pair in planned_pairs(module) if rule_of(part) is None]
        for part, pair in (*by_rule, *planned):
            layers = (*pair.firsts, pair.second)
            kind = is_transposed if is_transposed(pair.second) else is_linear
            weights: list[Any] = [layer.weight for layer in layers if kind(layer)]
            if len(weights) < len(layers) or not self._is_large(weights[0]) or not is_worth_it(pair, weights, self.world_size):
                continue
            dims = dims_of(pair)
            if not all(self.named.allows(weight, "row" if dim else "col") for weight, dim in zip(weights, dims, strict=True)):
                continue
            ids = {id(weight) for weight in weights}
            if len(ids) < len(weights) or ids & taken or any(self.shard_of(weight) is not None for weight in weights):
                continue
            taken |= ids
            for weight, dim in zip(weights, dims, strict=True):
                (self._by_rows.add if dim else self._by_rows.discard)(id(weight))
            if kind is is_transposed:
                self._layers |= {id(pair.firsts[0].bias)}
            if pair.groups > 1:
                self._groups_of |= {id(parameter): pair.groups for parameter in pair.firsts[0].parameters()}
            self._layers |= ids
            biases |= {id(bias) for bias in pair.second._parameters.values() if bias is not None and id(bias) not in ids}
            self._pairs.know(part, pair if rule_of(part) is None else None)
        biases -= {id(part.bias) for part in modules_in(module) if is_linear(part) and id(part.weight) not in self._by_rows}
        self._layers -= biases
        return biases

    def _find_heads(self, module: nn.Module, why_not: dict[int, str]) -> set[int]:
        """Shard attention by heads, or note why not; return the ``id`` of biases that are added after the all-reduce."""
        biases: set[int] = set()
        for part in modules_in(module):
            heads = heads_of(part)
            if heads is None:
                continue
            parameters = [parameter for parameter, *_ in heads.by_heads]
            if all(self.shard_of(parameter) is not None for parameter in parameters):
                self._layers |= {id(parameter) for parameter in parameters}
                continue
            reason = self._why_not_by_heads(heads)
            why_not.update((id(parameter), reason) for parameter in parameters)
            if reason:
                continue
            for parameter, dim, groups in heads.by_heads:
                self._layers.add(id(parameter))
                self._groups_of[id(parameter)] = groups
                (self._by_rows.add if dim else self._by_rows.discard)(id(parameter))
            biases |= {id(bias) for bias in heads.after_sum}
        return biases

    def _why_not_by_heads(self, heads: Heads) -> str:
        parameters = [parameter for parameter, *_ in heads.by_heads]
        if heads.why_not:
            return heads.why_not
        if heads.number % self.world_size:
            return f"their {heads.number} heads do not divide evenly over {self.world_size} engines"
        is_allowed = all(self.named.allows(parameter, "row" if dim else "col") for parameter, dim, _ in heads.by_heads)
        is_new = not any(id(one) in self._layers or self.shard_of(one) is not None for one in parameters)
        return "" if is_allowed and is_new and self._is_large(parameters[0]) else "they are divided in another way, or not large enough"

    def _groups(self, parameter: nn.Parameter) -> int:
        return self._groups_of.get(id(parameter), 1)

    def _dim(self, parameter: nn.Parameter) -> int:
        return int(id(parameter) in self._by_rows)

    def _is_wanted(self, parameter: nn.Parameter) -> bool:
        return parameter.dim() > 0 and id(parameter) in self._layers

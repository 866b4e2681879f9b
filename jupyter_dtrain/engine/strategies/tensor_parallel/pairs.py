"""Pairs of linear layers (:mod:`.rules`): the first is column-parallel, the second row-parallel, with no exchange between them.

Each rank computes activations and dropout between the two on its columns alone. This would be visible to hooks on the layers or between
them, and to a mode of the cell that sees each operation. At each call of the block where there are such, results are gathered after each
layer, as for layers that no rule knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import _get_current_function_mode_stack

from ....errors import UsageError
from ...identity_map import IdentityMap
from ...tensor.memory_layout import blank_like
from .column_parallel import Columns
from .dropped_heads import DroppedByHeads
from .layer_parameter import LayerParameter
from .linear_layers import is_linear, is_transposed, is_value
from .precision import Entered, enter
from .rules import Pair, pairs_of, rule_of

_OF_TORCH = ("torch.utils.checkpoint", "torch.utils._device")


class Layers(Protocol):
    """What computes the rank's part of linear layers: a :class:`.LayerStore`."""

    def divided(self, weight: Any) -> LayerParameter | None:
        """Return the shard of a weight if the ranks are to compute with shards now."""

    @property
    def has_groups(self) -> bool:
        """Whether there are several groups of ranks, with different samples."""

    def by_columns(self, given: Entered, weight: torch.Tensor, shard: LayerParameter, bias: torch.Tensor | None) -> torch.Tensor:
        """Return this rank's columns of ``F.linear`` of a value from :func:`enter`."""

    def by_rows(self, given: torch.Tensor, weight: torch.Tensor, shard: LayerParameter, bias: torch.Tensor | None) -> torch.Tensor:
        """Return ``F.linear`` of a local value, the rank's columns of the input. Collective."""


def dims_of(pair: Pair) -> list[int]:
    """Return the dims along which the weights of a pair are sharded: the second row-parallel, the others column-parallel."""
    dims = [*[0] * len(pair.firsts), 1]
    return [1 - dim for dim in dims] if is_transposed(pair.second) else dims


def is_worth_it(pair: Pair, weights: Sequence[nn.Parameter], num_ranks: int) -> bool:
    """Return whether the layers of a pair fit together, and a pair exchanges less than its layers one by one.

    A pair all-reduces the output. One by one, the layers gather the hidden activations and the output, and all-reduce the gradient of the
    hidden activations.
    """
    dims = dims_of(pair)
    width, num_out = weights[-1].shape[dims[-1]], weights[-1].shape[1 - dims[-1]]
    num_between = sum(first.shape[dim] for first, dim in zip(weights[:-1], dims, strict=False))
    return width >= num_ranks and _fit(pair, weights, num_ranks) and num_out < 3 * num_between


def _fit(pair: Pair, weights: Sequence[Any], num_ranks: int) -> bool:
    """Return whether what each rank computes with the first layers is what belongs to its rows of the second one."""
    *sizes, width = (weight.shape[dim] for weight, dim in zip(weights, dims_of(pair), strict=True))
    if pair.heads:
        return sizes[0] == pair.groups * width and all(
            number % num_ranks == 0 and size % (pair.groups * number) == 0 for number, size in zip(pair.heads, sizes, strict=True)
        )
    return all(size == width for size in sizes)


class PairCalls:
    """Handles calls of blocks that have pairs.

    Parameters
    ----------
    layers : Layers
    """

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._blocks: IdentityMap[list[Pair]] = IdentityMap()  # with those that no rule says, but a plan
        self._block: _BlockCall | None = None  # whose submodules are called now

    def know(self, block: nn.Module, planned: Pair | None = None) -> None:
        """Note that a module has a pair, by its rule or, if one is given, by a plan."""
        pairs = self._blocks.get(block) or self._blocks.set(block, [])
        pairs += [] if planned is None else [planned]

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the call of a module in a model. Collective, where it is part of a pair."""
        outer, self._block = self._block, self._begun(module, args, kwargs)
        try:
            if outer is not None:
                found = outer.call(module, args, kwargs)
                if found is not NotImplemented:
                    return found
            with nullcontext() if self._block is None else self._block.during():
                result = original(module, *args, **kwargs)
            if self._block is not None:
                self._block.check()
            return result
        finally:
            self._block = outer

    def _begun(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _BlockCall | None:
        planned = self._blocks.get(module)
        if planned is None or is_watched():
            return None
        rule = rule_of(module)
        drops = rule is not None and rule.drops(module)
        if (rule is not None and not rule.holds_for(module, args, kwargs)) or (drops and self._layers.has_groups):
            return None
        pairs = [pair for pair in planned if all(any(part is one for one in module.children()) for part in (*pair.firsts, pair.second))]
        usable = [(pair, shards) for pair in (*pairs_of(module), *pairs) if (shards := self._shards_of(pair)) is not None]
        return _BlockCall(module, self._layers, usable, drops=drops) if usable else None

    def _shards_of(self, pair: Pair) -> list[LayerParameter] | None:
        """Return the shards of the weights of a pair, ``None`` where it is not to be computed as one."""
        layers = (*pair.firsts, pair.second)
        if (not all(map(is_linear, layers)) and not all(map(is_transposed, layers))) or any(
            _has_own_hooks(part) for part in (*layers, *pair.between)
        ):
            return None
        shards = [self._layers.divided(layer.weight) for layer in layers]
        found = [shard for shard in shards if shard is not None]
        groups = [*[pair.groups] * len(pair.firsts), 1]
        if [(shard.dim, shard.storage.kind.groups) for shard in found] != [*zip(dims_of(pair), groups, strict=True)]:
            return None
        return found if _fit(pair, found, len(found[-1].shares)) else None


class _BlockCall:
    """A call of a block that is under way."""

    def __init__(self, block: nn.Module, layers: Layers, pairs: Sequence[tuple[Pair, list[LayerParameter]]], *, drops: bool) -> None:
        self._block, self._layers, self._pairs, self._drops = block, layers, pairs, drops
        self._firsts = {id(first): (pair, shard) for pair, shards in pairs for first, shard in zip(pair.firsts, shards, strict=False)}
        self._seconds = {id(pair.second): (pair, shards[-1]) for pair, shards in pairs}
        self._under_way: Pair | None = None
        self._given: tuple[Any, Entered] | None = None  # what the firsts are given, and what they compute with

    @contextmanager
    def during(self) -> Iterator[None]:
        """Let the block go on with what the rank has of the results of its first layer, until the end of the ``with`` block."""
        with ExitStack() as stack:
            for pair, shards in self._pairs:
                if pair.width:
                    before = getattr(self._block, pair.width)
                    stack.callback(setattr, self._block, pair.width, before)
                    setattr(self._block, pair.width, sum(size for _, size in shards[-1].columns.pieces))
                if pair.heads and self._drops:
                    total = shards[-1].columns.total_size
                    stack.enter_context(DroppedByHeads(shards[-1].columns.like(of=total // pair.heads[0])))
            yield

    def call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a submodule comes to on this rank; ``NotImplemented``: it is to be called as ever."""
        if id(module) in self._firsts:
            return self._first(module, args, kwargs)
        if self._under_way is None:
            return NotImplemented
        if id(module) in self._seconds:
            return self._second(module, args, kwargs)
        if any(module is part for part in self._under_way.between):
            is_dropout = type(module) is nn.Dropout and len(args) == 1
            return _dropped(module, args[0], self._seconds[id(self._under_way.second)][1].columns) if is_dropout else NotImplemented
        return self._refuse(module)

    def _first(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pair, shard = self._firsts[id(module)]
        is_usual = (
            len(args) == 1 and not kwargs and is_value(args[0], shard.shape[1 - shard.dim]) and self._layers.divided(module.weight) is shard
        )
        if self._under_way not in (None, pair) or (self._under_way is pair and not is_usual):
            return self._refuse(module)
        if not is_usual or (self._under_way is None and module is not pair.firsts[0]):
            return NotImplemented
        if self._given is None or self._given[0] is not args[0]:
            self._given = args[0], enter(args[0], shard.columns)
        self._under_way = pair
        return self._layers.by_columns(self._given[1], module.weight, shard, module.bias)

    def _second(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pair, shard = self._seconds[id(module)]
        is_usual = len(args) == 1 and not kwargs and is_value(args[0], sum(size for _, size in shard.columns.pieces))
        if self._under_way is not pair or not is_usual or self._layers.divided(module.weight) is not shard:
            return self._refuse(module)
        self._under_way = self._given = None
        return self._layers.by_rows(args[0], module.weight, shard, module.bias)

    def check(self) -> None:
        """Check that each pair that was entered has been left.

        Raises
        ------
        UsageError
        """
        if self._under_way is not None:
            self._refuse(self._block)

    def _refuse(self, module: nn.Module) -> Any:
        raise UsageError(
            f"`--strategy tensor` computes layers of `{type(self._block).__name__}` as a pair: the output of the first layer "
            f"goes to the second and nowhere else, and `{type(module).__name__}` gets it in another way. Use `--strategy zero3`."
        )


def _dropped(dropout: nn.Dropout, given: torch.Tensor, columns: Columns) -> torch.Tensor:
    """Return the rank's columns of what a dropout comes to: drawn for all of them, as one process draws."""
    if not dropout.training or not dropout.p:
        return given
    ones = blank_like(given.detach(), given.dim() - 1, columns.total_size).fill_(1.0)
    mask = columns.own(nn.functional.dropout(ones, dropout.p, training=True), -1)
    return given.mul_(mask) if dropout.inplace else given * mask


def _has_own_hooks(module: nn.Module) -> bool:
    kept = vars(module)
    return any(kept.get(name) for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"))


def is_watched() -> bool:
    """Return whether the cell looks at every operation, at what every module is given, or at what graphs keep."""
    if _has_any_global_hook() or any(not _is_known(type(mode)) for mode in _get_current_function_mode_stack()):
        return True
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and not _is_known(hooks[0])


def _is_known(what: Any) -> bool:
    module = str(getattr(what, "__module__", ""))
    return module.startswith("jupyter_dtrain.") or module in _OF_TORCH

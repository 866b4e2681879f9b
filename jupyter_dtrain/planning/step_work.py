"""What a training step computes, and what of it other engines would have to be given: counted while the step runs on fakes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .model_cut import atoms_of, blocks_in

LARGE = 1 << 16
"""Bytes of a parameter that is divided, by rows or by columns."""
Pairs = Callable[[nn.Module], Sequence[Any]]
"""Returns the linear layers in a module that engines compute in pairs of columns and rows, each with `firsts` and `second`."""


class LinearCall(NamedTuple):
    """A call of a large linear layer: bytes of what it is given and returns, its FLOPs, and whether what it is given has a gradient.

    `place`: whether it is the ``first`` of a pair, its ``second`` or, with an empty word, in none.
    """

    given: int
    returned: int
    flops: int
    is_given_gradient: bool
    place: str


class AtomCall(NamedTuple):
    """A call of what is computed in one piece: the place of its first parameter among the model's groups, and bytes of tensors.

    `chain`: which ``nn.Sequential`` calls it, -1: other code. `flops`: of its forward pass.
    """

    group: int
    chain: int
    given: int
    returned: int
    flops: int
    is_given_gradient: bool


@dataclass(frozen=True)
class StepWork:
    """What a step does.

    Attributes
    ----------
    samples : int
        Of the share of which this is.
    flops, traffic, operations : int
        Of the forward and the backward pass: floating-point operations, bytes that are read and written, and how many operations.
    updating, updates : int
        Bytes and operations of the optimizer.
    fetched : int
        Bytes of large parameters that blocks and layers get for their calls, in the forward pass and again in the backward pass.
    large : int
        Bytes of the gradients of large parameters.
    units : int
        Blocks and layers that have any.
    linears : tuple of LinearCall
    atoms : tuple of AtomCall
    hands_on : bool
        Whether stages can hand on activations: no BatchNorm, no recurrent layers.
    """

    samples: int = 0
    flops: int = 0
    traffic: int = 0
    operations: int = 0
    updating: int = 0
    updates: int = 0
    fetched: int = 0
    large: int = 0
    units: int = 0
    linears: tuple[LinearCall, ...] = ()
    atoms: tuple[AtomCall, ...] = ()
    hands_on: bool = True


class Work:
    """Adds up what operations do, as :class:`.LiveBytes` shows them."""

    def __init__(self) -> None:
        self.flops = self.traffic = self.operations = 0

    def add(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count an operation."""
        if _is_view(func):
            return
        self.operations += 1
        self.traffic += _all_bytes(args) + _all_bytes(result)
        count = flop_registry.get(func._overloadpacket) or _MORE.get(func._overloadpacket)
        if count is not None:
            self.flops += int(count(*args, **kwargs, out_val=result))

    def lap(self) -> tuple[int, int, int]:
        """Return FLOPs, bytes and operations since the last lap."""
        found = self.flops, self.traffic, self.operations
        self.flops = self.traffic = self.operations = 0
        return found


@functools.cache
def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of the products of attention, (B, H, L, E) and (B, H, S, E)."""
    return 2 * query.numel() * key.shape[-2] + 2 * query.numel() // query.shape[-1] * key.shape[-2] * value.shape[-1]


def _attention_backward(_: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *__: Any, **___: Any) -> int:
    return 5 * _attention(query, key, value) // 2


def _recurrent(given: torch.Tensor, w0: torch.Tensor, w1: torch.Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a layer of oneDNN's, (T, B, I), with weights (G, I) and (G, H)."""
    return 2 * given.shape[0] * given.shape[1] * (w0.numel() + w1.numel())


_ATEN = torch.ops.aten
_MORE: dict[Any, Callable[..., int]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _ATEN.mkldnn_rnn_layer: _recurrent,
    _ATEN.mkldnn_rnn_layer_backward: lambda *args, **kwargs: 2 * _recurrent(*args, **kwargs),
}


class Calls:
    """Which modules of a model are called, on how much.

    Parameters
    ----------
    model : nn.Module
    pairs : callable
        Finds linear layers that belong together.
    work : Work
        Counts the operations of the calls.
    """

    def __init__(self, model: nn.Module, pairs: Pairs, work: Work) -> None:
        self._model, self._work = model, work
        self._linears: list[LinearCall] = []
        self._atoms: list[AtomCall] = []
        self._again: set[int] = set()  # modules whose parameters the backward pass needs
        self._places: dict[int, str] = {}
        for module in model.modules():
            for pair in pairs(module):
                self._places |= {id(first): "first" for first in pair.firsts} | {id(pair.second): "second"}

    @contextmanager
    def followed(self, groups: Sequence[Sequence[nn.Parameter]], is_divided: Callable[[nn.Module], bool]) -> Iterator[None]:
        """Note calls of the model until the end of the ``with`` block; `is_divided` says which layers are large linear ones."""
        group_of = {id(parameter): index for index, group in enumerate(groups) for parameter in group}
        chains = {id(atom): index for index, part in enumerate(self._model.modules()) if _is_chain(part) for atom in _in_chain(part)}
        begun: dict[int, int] = {}
        handles = []
        for module in self._model.modules():
            if module._parameters:
                handles.append(module.register_forward_hook(self._note_need))
            if is_divided(module):
                handles.append(module.register_forward_hook(self._note_linear))
        for atom in atoms_of(self._model):
            group = min((group_of[id(parameter)] for parameter in atom.parameters()), default=-1)
            place = group, chains.get(id(atom), -1)
            handles.append(atom.register_forward_pre_hook(lambda one, _: begun.update({id(one): self._work.flops})))
            handles.append(atom.register_forward_hook(lambda one, *of, place=place: self._note_atom(place, begun[id(one)], *of)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note_need(self, module: nn.Module, given: Any, _: Any) -> None:
        if _has_gradient(given) or isinstance(module, nn.RNNBase):
            self._again.add(id(module))

    def _note_linear(self, module: Any, given: Any, returned: Any) -> None:
        tokens = returned.numel() // module.out_features
        flops = 2 * tokens * module.weight.numel() * (3 if _has_gradient(given) else 2)
        place = self._places.get(id(module), "")
        self._linears.append(LinearCall(_all_bytes(given), _all_bytes(returned), int(flops), _has_gradient(given), place))

    def _note_atom(self, place: tuple[int, int], begun: int, given: Any, returned: Any) -> None:
        self._atoms.append(AtomCall(*place, _all_bytes(given), _all_bytes(returned), self._work.flops - begun, _has_gradient(given)))

    def found(self, work: StepWork) -> StepWork:
        """Return `work` with the calls."""
        model = self._model
        blocks = blocks_in(model)
        inside = {id(part) for block in blocks for part in block.modules()}
        fetched = units = 0
        for part in [*blocks, *(part for part in model.modules() if id(part) not in inside)]:
            own = part.parameters() if id(part) in inside else part.parameters(recurse=False)
            size = sum(size for one in own if (size := _bytes(one)) >= LARGE)
            again = any(id(one) in self._again and any(_bytes(p) >= LARGE for p in one._parameters.values()) for one in part.modules())
            fetched += size * (2 if again else 1)
            units += size > 0
        kinds = (nn.RNNBase, nn.modules.batchnorm._BatchNorm)
        return replace(
            work,
            fetched=fetched,
            units=units,
            large=sum(size for one in model.parameters() if (size := _bytes(one)) >= LARGE and one.requires_grad),
            linears=tuple(self._linears),
            atoms=tuple(self._atoms),
            hands_on=not any(isinstance(module, kinds) for module in model.modules()),
        )


def _is_chain(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _in_chain(module: nn.Module) -> Iterator[nn.Module]:
    for part in module._modules.values():
        if part is not None:
            yield from _in_chain(part) if _is_chain(part) else (part,)


def _has_gradient(values: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(values))


def _all_bytes(values: Any) -> int:
    if isinstance(values, torch.Tensor):
        return _bytes(values)
    if isinstance(values, dict):
        values = values.values()
    return sum(map(_all_bytes, values)) if isinstance(values, Iterable) and not isinstance(values, str) else 0


def _bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) and value.layout == torch.strided else 0

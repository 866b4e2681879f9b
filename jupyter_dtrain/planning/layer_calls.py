"""Note which layers a step on fakes calls, with how many bytes, and which of them engines would compute together."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .model_cut import atoms_of, blocks_in
from .step_work import LARGE, AtomCall, LinearCall, StepWork, Work, all_bytes, bytes_of


class Rules(Protocol):
    """Which layers engines compute together, each with its columns or heads. A strategy's package of rules implements it."""

    def pairs_of(self, module: nn.Module, /) -> Sequence[Any]:
        """Return the pairs of linear layers in a module that are sharded by columns and then by rows, each with `firsts` and `second`."""

    def heads_of(self, module: nn.Module, /) -> Any:
        """Return how a module computes attention by heads, with their `number` and `why_not`; ``None`` if it is no attention."""


class NoRules:
    """No layers are computed together."""

    def pairs_of(self, _: nn.Module, /) -> Sequence[Any]:
        """Return nothing."""
        return ()

    def heads_of(self, _: nn.Module, /) -> Any:
        """Return nothing."""
        return None


NO_RULES = NoRules()


class Calls:
    """The calls of a model's modules, with bytes and FLOPs.

    Parameters
    ----------
    model : nn.Module
    rules : Rules
    work : Work
        Counts the operations of the calls.
    now : callable
        Returns the live bytes.
    """

    def __init__(self, model: nn.Module, rules: Rules, work: Work, now: Callable[[], int]) -> None:
        self._model, self._rules, self._work, self._now = model, rules, work, now
        self.linears: list[LinearCall] = []
        self._atoms: list[AtomCall] = []
        self._again: set[int] = set()  # modules whose parameters the backward pass needs
        self._begun: dict[int, tuple[int, int]] = {}  # bytes and FLOPs at the start of a pair or an attention, by the id of its last module
        self._places: dict[int, str] = {}
        self._heads: dict[int, int] = {}  # number of heads in pairs that compute attention, by layer
        self._ends: dict[int, int] = {}  # last layer of a pair, by its first
        for module in model.modules():
            for pair in rules.pairs_of(module):
                self._places |= {id(first): "first" for first in pair.firsts} | {id(pair.second): "second"}
                self._ends[id(pair.firsts[0])] = id(pair.second)
                self._heads |= dict.fromkeys(map(id, (*pair.firsts, pair.second)), math.gcd(*pair.heads))

    @contextmanager
    def followed(self, groups: Sequence[Sequence[nn.Parameter]], is_divided: Callable[[nn.Module], bool]) -> Iterator[None]:
        """Note calls of the model until the end of the ``with`` block; `is_divided` tells the large linear layers."""
        group_of = {id(parameter): index for index, group in enumerate(groups) for parameter in group}
        chains = {id(atom): index for index, part in enumerate(self._model.modules()) if _is_chain(part) for atom in _in_chain(part)}
        begun: dict[int, tuple[int, int]] = {}  # bytes and FLOPs, by atom
        handles = []
        for module in self._model.modules():
            if module._parameters:
                handles.append(module.register_forward_hook(self._note_need))
            heads = self._rules.heads_of(module)
            if is_divided(module) or (id(module) in self._places and is_wide(module)):
                handles.append(module.register_forward_pre_hook(self._begin))
                handles.append(module.register_forward_hook(self._note_linear))
            elif heads is not None and not heads.why_not and is_divided_by_heads(heads):
                handles.append(module.register_forward_pre_hook(self._begin))
                note = functools.partial(self._note_heads, heads)
                handles.append(module.register_forward_hook(note, with_kwargs=True))
        for atom in atoms_of(self._model):
            group = min((group_of[id(parameter)] for parameter in atom.parameters()), default=-1)
            place = group, chains.get(id(atom), -1)
            handles.append(atom.register_forward_pre_hook(lambda one, _: begun.update({id(one): (self._now(), self._work.counts.flops)})))
            handles.append(atom.register_forward_hook(lambda one, *of, place=place: self._note_atom(place, begun[id(one)], *of)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def needs(self, module: nn.Module) -> bool:
        """Return whether the backward pass needs the parameters of a module."""
        return id(module) in self._again

    def repeat(self, linears: Sequence[LinearCall], needed: Sequence[nn.Module]) -> None:
        """Add calls equal to noted ones; the backward pass needs the parameters of the modules `needed`."""
        self.linears += linears
        self._again |= set(map(id, needed))

    def _note_need(self, module: nn.Module, given: Any, _: Any) -> None:
        if _has_gradient(given) or isinstance(module, nn.RNNBase):
            self._again.add(id(module))

    def _note_linear(self, module: Any, given: Any, returned: Any) -> None:
        tokens = returned.numel() // returned.shape[-1]
        flops = 2 * tokens * module.weight.numel() * (3 if _has_gradient(given) else 2)
        place, out = self._places.get(id(module), ""), all_bytes(returned)
        hidden = self._hidden(module, out) if place == "second" else 0
        heads, size, is_given = self._heads.get(id(module), 0), _all_of(module), _has_gradient(given)
        self.linears.append(LinearCall(all_bytes(given), out, int(flops), is_given, place, heads, hidden, size))

    def _begin(self, module: nn.Module, _: Any) -> None:
        self._begun[self._ends.get(id(module), id(module))] = self._now(), self._work.counts.flops

    def _hidden(self, module: nn.Module, returned: int) -> int:
        return max(0, self._now() - self._begun[id(module)][0] - returned) if id(module) in self._begun else 0

    def _note_heads(self, heads: Any, module: nn.Module, args: Any, kwargs: Any, returned: Any) -> None:
        given = {id(one): one for one in (*args[:3], *(kwargs.get(name) for name in ("query", "key", "value"))) if torch.is_tensor(one)}
        passed = [one for one in given.values() if one.requires_grad]
        size = sum(bytes_of(parameter) for parameter, *_ in heads.by_heads)
        flops, out = 3 * (self._work.counts.flops - self._begun[id(module)][1]), all_bytes(returned)
        hidden = self._hidden(module, out)
        self.linears.append(LinearCall(all_bytes(passed), out, flops, bool(passed), "heads", heads.number, hidden, size))

    def _note_atom(self, place: tuple[int, int], begun: tuple[int, int], given: Any, returned: Any) -> None:
        kept, flops = self._now() - begun[0], self._work.counts.flops - begun[1]
        self._atoms.append(AtomCall(*place, all_bytes(given), all_bytes(returned), flops, _has_gradient(given), kept))

    def found(self, work: StepWork) -> StepWork:
        """Return `work` with the noted calls."""
        model = self._model
        blocks = blocks_in(model)
        inside = {id(part) for block in blocks for part in block.modules()}
        fetched = units = 0
        for part in [*blocks, *(part for part in model.modules() if id(part) not in inside)]:
            own = part.parameters() if id(part) in inside else part.parameters(recurse=False)
            size = sum(size for one in own if (size := bytes_of(one)) >= LARGE)
            again = any(id(one) in self._again and any(bytes_of(p) >= LARGE for p in one._parameters.values()) for one in part.modules())
            fetched += size * (2 if again else 1)
            units += size > 0
        kinds = (nn.RNNBase, nn.modules.batchnorm._BatchNorm)
        return replace(
            work,
            fetched=fetched,
            units=units,
            large=sum(size for one in model.parameters() if (size := bytes_of(one)) >= LARGE and one.requires_grad),
            linears=tuple(self.linears),
            atoms=tuple(self._atoms),
            hands_on=not any(isinstance(module, kinds) for module in model.modules()),
        )


def is_divided_by_heads(heads: Any) -> bool:
    """Return whether the parameters of an attention are large enough to be sharded."""
    return bytes_of(heads.by_heads[0][0]) >= LARGE


def _is_chain(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _in_chain(module: nn.Module) -> Iterator[nn.Module]:
    for part in module._modules.values():
        if part is not None:
            yield from _in_chain(part) if _is_chain(part) else (part,)


def is_wide(layer: nn.Module) -> bool:
    """Return whether the weight of a pair's layer is large enough to be sharded."""
    return bytes_of(layer._parameters.get("weight")) >= LARGE


def _all_of(layer: nn.Module) -> int:
    return sum(map(bytes_of, layer.parameters(recurse=False)))


def _has_gradient(values: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(values))

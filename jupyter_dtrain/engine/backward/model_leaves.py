"""Parameters of the models that the cell trains: which belong to one model, and an order that is the same on all ranks."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import nn

from ..identity_map import IdentityMap
from ..module_tree import Found, parameters_in


class ModelLeaves:
    """The registered models, which can be looked up by parameter."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[nn.Module]] = []
        self._model_of: IdentityMap[weakref.ref[nn.Module]] = IdentityMap()  # by parameter
        self._parameters = Found(parameters_in)

    def register(self, module: nn.Module) -> None:
        """Register `module`, so that its parameters are reduced together even if a backward pass reaches only some of them."""
        reference = weakref.ref(module)
        self._models.append(reference)
        for parameter in module.parameters():
            if self._model(parameter) is None:
                self._model_of.set(parameter, reference)

    def with_siblings(self, reached: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return `reached`, followed by the other parameters of their models that require gradients."""
        there = {id(leaf) for leaf in reached}
        models = {id(model): model for leaf in reached if (model := self._model(leaf)) is not None}
        rest = {
            id(p): p
            for model in models.values()
            for p in self._parameters.of(model)
            if p.requires_grad and p.is_leaf and id(p) not in there
        }
        return reached + list(rest.values())

    def ordered(self, leaves: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return `leaves` in an order that is the same on all ranks: parameters by registered module, then the rest as given."""
        first: dict[int, int] = {}
        for reference in self._models:
            model = reference()
            for parameter in model.parameters() if model is not None else ():
                first.setdefault(id(parameter), len(first))
        return sorted(leaves, key=lambda leaf: first.get(id(leaf), len(first)))

    def names(self, leaves: Iterable[torch.Tensor]) -> list[str]:
        """Return what to call `leaves` in a message: "`0.weight` of `Net`", or a tensor's shape where no model has it."""
        found = {
            id(p): f"`{name}` of `{type(model).__name__}`"
            for reference in self._models
            if (model := reference()) is not None
            for name, p in model.named_parameters()
        }
        return [found.get(id(leaf)) or f"a tensor of shape {tuple(leaf.shape)}" for leaf in leaves]

    def _model(self, leaf: torch.Tensor) -> nn.Module | None:
        reference = self._model_of.get(leaf)
        return reference() if reference is not None else None

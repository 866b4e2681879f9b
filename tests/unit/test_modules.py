"""What is in a module is what ``nn.Module`` says."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from jupyter_dtrain.engine.module_tree import Found, modules_in, parameters_in, registrations_counted


class _Negated(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x


class _Hiding(nn.Module):
    """Says itself what is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.shown, self.hidden = nn.Linear(2, 2), nn.Linear(2, 2)

    def named_modules(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Module]]:
        yield "", self
        yield "shown", self.shown


class _OwnParameters(_Hiding):
    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield "one", self.shown.bias


def _tied() -> nn.Module:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, second, first, nn.ModuleDict({"norm": nn.BatchNorm1d(3)}))


def _with_nothing() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU())
    model.register_module("later", None)
    return model


def _parametrized() -> nn.Module:
    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", _Negated())
    return nn.Sequential(layer)


MAKERS: list[Callable[[], nn.Module]] = [
    _tied,
    _with_nothing,
    _parametrized,
    _Hiding,
    lambda: nn.Sequential(nn.Linear(2, 2), _Hiding()),
    _OwnParameters,
    lambda: nn.Sequential(_OwnParameters()),
]


@pytest.mark.parametrize("make", MAKERS)
def test_modules_and_parameters_in_order(make: Callable[[], nn.Module]) -> None:
    model = make()
    assert list(map(id, modules_in(model))) == list(map(id, model.modules()))
    assert list(map(id, parameters_in(model))) == list(map(id, model.parameters()))


def test_what_was_found_holds_until_something_is_registered() -> None:
    looked: list[nn.Module] = []

    def look(module: nn.Module) -> list[nn.Parameter]:
        looked.append(module)
        return parameters_in(module)

    found = Found(look)
    first, others = nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)])
    model = nn.Sequential(first, others)
    with registrations_counted():
        assert len(found.of(model)) == len(found.of(model)) == 4
        assert len(looked) == 1
        model.append(nn.Linear(2, 2))
        assert len(found.of(model)) == 6
        others.append(nn.Linear(2, 2, bias=False))
        assert len(found.of(model)) == 7
        first.bias = nn.Parameter(torch.ones(2))
        assert any(part is first.bias for part in found.of(model))
        model.scale = nn.Parameter(torch.ones(()))
        assert len(found.of(model)) == 8
        nn.utils.parametrizations.weight_norm(first)
        assert {id(part) for part in found.of(model)} == {id(part) for part in model.parameters()}
    model.append(nn.Linear(2, 2))
    assert len(found.of(model)) == len(list(model.parameters()))  # nobody counts: it is looked for each time


def test_what_was_found_keeps_nothing_alive() -> None:
    layers = Found(modules_in)
    with registrations_counted():
        model = nn.Linear(2, 2)
        assert layers.of(model) == [model]
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None

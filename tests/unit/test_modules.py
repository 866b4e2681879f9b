"""What is in a module is what ``nn.Module`` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from jupyter_dtrain.engine.modules import modules_in, parameters_in


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

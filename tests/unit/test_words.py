"""What code may do, told from its text."""

from __future__ import annotations

from functools import partial, wraps
from types import FunctionType

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from jupyter_dtrain.engine.code_inspection import model_uses
from jupyter_dtrain.engine.data.collate_words import may_draw, may_mix
from jupyter_dtrain.engine.forward.module_state import may_write


def wrapped(forward):
    @wraps(forward)
    def wrapper(self, x):
        return forward(self, x)

    return wrapper


class First(nn.Module):
    @wrapped
    def forward(self, x):
        return x + 1


class Second(nn.Module):
    @wrapped
    def forward(self, x):
        return x - x.mean(0)


@pytest.mark.parametrize("parts", [(First, Second), (Second, First)])
def test_each_function_that_a_decorator_wraps_is_looked_into(parts):
    model = nn.Sequential(*(part() for part in parts))
    assert model_uses(model, lambda _, names: "mean" in names)
    assert not model_uses(First(), lambda _, names: "mean" in names)


class Helper:
    @staticmethod
    def centred(x):
        return x - x.mean(0)

    def scaled(self, x):
        return self.spread(x)

    def spread(self, x):
        return x / x.std(0)


helper = Helper()


class ByClass(nn.Module):
    def forward(self, x):
        return Helper.centred(x)


class ByObject(nn.Module):
    def forward(self, x):
        return helper.scaled(x)


def test_methods_of_classes_and_objects_that_code_knows_by_name_are_looked_into():
    assert model_uses(ByClass(), lambda _, names: "mean" in names)
    assert model_uses(ByObject(), lambda _, names: "std" in names)
    assert not model_uses(ByClass(), lambda _, names: "std" in names)


def patch_of(original):
    @wraps(original)
    def patched(*args):
        return original(*args) if len(args) > 1 else args[0].median()

    return patched


def opened(x):
    return x + 1


class ByPatch(nn.Module):
    def forward(self, x):
        return opened(x)


@pytest.mark.parametrize(("original", "uses"), [(opened, False), (Helper.centred, True)])
def test_patches_of_this_package_are_looked_through(monkeypatch, original, uses):
    """Such as that of `open` in the notebook: what they do themselves is not what the user's code does."""
    by_us = FunctionType(patch_of.__code__, {**globals(), "__name__": "jupyter_dtrain.engine.side_effects"})
    monkeypatch.setitem(globals(), "opened", by_us(original))
    assert not model_uses(ByPatch(), lambda _, names: "median" in names)
    assert model_uses(ByPatch(), lambda _, names: "mean" in names) is uses


class Made(nn.Module):
    """As models set their first weights: in `__init__`, by a method for each module, or when they are told to."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.LayerNorm(3).requires_grad_(False)
        nn.init.zeros_(self.layer.bias)
        self.apply(self._init_weights)
        self.reset_parameters()

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            self.reset_bias(module)

    def reset_parameters(self):
        nn.init.xavier_uniform_(self.layer.weight)

    def reset_bias(self, module):
        module.bias.data.zero_()

    def forward(self, x):
        return self.layer(x)


class ResetInCalls(Made):
    def forward(self, x):
        self.reset_parameters()
        return super().forward(x)


class ResetByName(Made):
    def forward(self, x):
        getattr(self, "reset_" + "parameters")()
        return super().forward(x)


class ResetByAnother(Made):
    def forward(self, x):
        reset(self)
        return super().forward(x)


class ResetByHook(Made):
    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(self.reset_first)

    def reset_first(self, *_):
        self.layer.weight.data.zero_()


class MadeInCalls(nn.modules.lazy.LazyModuleMixin, Made):
    """Its first call makes it."""

    def initialize_parameters(self, _):
        self.reset_parameters()


class WritesInCalls(Made):
    def forward(self, x):
        self.layer.weight.mul_(0.9)
        return super().forward(x)


def reset(model):
    model.reset_bias(model.layer)


def test_what_sets_first_weights_writes_in_no_call():
    assert not may_write(Made())
    assert not may_write(nn.Sequential(Made(), Made()))


@pytest.mark.parametrize("kind", [ResetInCalls, ResetByName, ResetByAnother, ResetByHook, MadeInCalls, WritesInCalls])
def test_what_a_call_may_come_to_writes_in_it(kind):
    assert may_write(kind())
    assert may_write(nn.Sequential(First(), kind()))


class Collator:
    def sorted(self, items):
        return self.in_order(items)

    def noisy(self, items):
        return torch.stack(items) + torch.randn(1)

    def stacked(self, items):
        return {"x": torch.stack(items), "n": torch.tensor([len(x) for x in items])}

    @staticmethod
    def in_order(items):
        items.sort(key=len)
        return items


HELD = Collator()


@pytest.mark.parametrize(
    "collate",
    [
        HELD.sorted,
        HELD.noisy,
        lambda items: HELD.sorted(items),
        partial(HELD.sorted),
        lambda items: HELD.in_order(items),
        lambda items: list({len(x) for x in items}),
    ],
    ids=["its object's method", "draws", "a method's method", "partial", "an object's method by name", "a set"],
)
def test_collate_functions_that_may_mix_samples(collate):
    assert may_mix(collate)
    assert may_draw(collate) == (collate == HELD.noisy)


@pytest.mark.parametrize(
    "collate",
    [HELD.stacked, default_collate, list, pad_sequence, lambda items: pad_sequence(items), lambda items: tuple(zip(*items, strict=True))],
)
def test_collate_functions_that_do_not(collate):
    assert not may_mix(collate)

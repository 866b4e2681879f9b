"""What code may do, told from its text."""

from __future__ import annotations

from functools import partial, wraps

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from jupyter_dtrain.engine.code_inspection import model_uses
from jupyter_dtrain.engine.data.collate_words import may_draw, may_mix


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

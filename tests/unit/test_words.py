"""What code may do, told from its text."""

from __future__ import annotations

from functools import partial, wraps

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from jupyter_dtrain.engine.code_inspection import model_uses, takes_rows
from jupyter_dtrain.engine.data.collate import may_draw, may_mix


@pytest.mark.parametrize("text", ["x[0]", "x[-1]", "x[1:]", "x[::2]", "x[order]", "x[x > 0]", "[x[i] for i in order]", "(lambda: x[0])()"])
def test_subscripts_that_may_be_of_samples(text):
    assert takes_rows(compile(text, "cell", "eval"))


@pytest.mark.parametrize(
    "text", ["x[:, 0]", "x[:, 1:]", "x[..., 0]", "x[:, None]", "x[None, :]", "x.shape[0]", "x.size()[0]", "x.max(1)[0]", "batch['x']"]
)
def test_subscripts_that_are_of_none(text):
    assert not takes_rows(compile(text, "cell", "eval"))


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

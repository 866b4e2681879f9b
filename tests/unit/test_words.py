"""What code may do, told from its text."""

from __future__ import annotations

import functools

import pytest
from torch import nn

from jupyter_dtrain.engine.words import model_uses, takes_rows


@pytest.mark.parametrize("text", ["x[0]", "x[-1]", "x[1:]", "x[::2]", "x[order]", "x[x > 0]", "[x[i] for i in order]", "(lambda: x[0])()"])
def test_subscripts_that_may_be_of_samples(text):
    assert takes_rows(compile(text, "cell", "eval"))


@pytest.mark.parametrize(
    "text", ["x[:, 0]", "x[:, 1:]", "x[..., 0]", "x[:, None]", "x[None, :]", "x.shape[0]", "x.size()[0]", "x.max(1)[0]", "batch['x']"]
)
def test_subscripts_that_are_of_none(text):
    assert not takes_rows(compile(text, "cell", "eval"))


def wrapped(forward):
    @functools.wraps(forward)
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

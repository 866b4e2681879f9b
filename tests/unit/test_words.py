"""What code may do, told from its text."""

from __future__ import annotations

import pytest

from jupyter_dtrain.engine.words import takes_rows


@pytest.mark.parametrize("text", ["x[0]", "x[-1]", "x[1:]", "x[::2]", "x[order]", "x[x > 0]", "[x[i] for i in order]", "(lambda: x[0])()"])
def test_subscripts_that_may_be_of_samples(text):
    assert takes_rows(compile(text, "cell", "eval"))


@pytest.mark.parametrize(
    "text", ["x[:, 0]", "x[:, 1:]", "x[..., 0]", "x[:, None]", "x[None, :]", "x.shape[0]", "x.size()[0]", "x.max(1)[0]", "batch['x']"]
)
def test_subscripts_that_are_of_none(text):
    assert not takes_rows(compile(text, "cell", "eval"))

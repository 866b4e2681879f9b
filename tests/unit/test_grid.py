"""``--vary``: from expressions to trials."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.trials.grid import trials_of


class Wide:
    pass


NAMESPACE = {"np": np, "torch": torch, "small": Wide(), "large": Wide(), "Wide": Wide, "rates": [0.1, 0.01]}


def labels(*vary):
    return [trial.label for trial in trials_of(vary, NAMESPACE)]


def values(expression):
    return [trial.values["x"] for trial in trials_of([("x", expression)], NAMESPACE)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0.1,0.01", [0.1, 0.01]),
        ("1", [1]),
        ("-1,None,True", [-1, None, True]),
        ("range(3)", [0, 1, 2]),
        ("[1, 2]", [1, 2]),
        ("(8,8),(16,)", [(8, 8), (16,)]),
        ("rates", [0.1, 0.01]),
        ("np.linspace(0, 1, 3)", [0.0, 0.5, 1.0]),
        ("torch.arange(2)", [0, 1]),
        ("adam,sgd", ["adam", "sgd"]),
        ("'a b',c", ["a b", "c"]),
        ("Wide,torch.optim.SGD", [Wide, torch.optim.SGD]),
        ("small,large", [NAMESPACE["small"], NAMESPACE["large"]]),
        ("[*rates, 1.0]", [0.1, 0.01, 1.0]),
    ],
)
def test_values_are_those_of_the_expression(expression, expected):
    found = values(expression)
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


def test_every_combination_is_a_trial():
    assert labels(("lr", "0.1,1e-2"), ("kind", "adam,sgd")) == [
        "lr=0.1 kind=adam",
        "lr=0.1 kind=sgd",
        "lr=0.01 kind=adam",
        "lr=0.01 kind=sgd",
    ]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("np.logspace(-4, -2, 3)", ["x=0.0001", "x=0.001", "x=0.01"]),
        ("small,large", ["x=small", "x=large"]),
        ("[small, small]", ["x=small#1", "x=small#2"]),
        ("torch.optim.SGD,torch.optim.Adam", ["x=torch.optim.SGD", "x=torch.optim.Adam"]),
        ("lambda: 1, Wide", ["x=<lambda>", "x=Wide"]),
        ("{'a': torch.zeros(99)},1", ["x=dict", "x=1"]),
    ],
)
def test_trials_are_told_apart_by_their_labels(expression, expected):
    assert labels(("x", expression)) == expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 +", "--vary x=1 +: this is no Python expression"),
        ("[]", "--vary x=[]: there are no values in it."),
        ("nowhere(1)", "--vary x=nowhere(1): name 'nowhere' is not defined."),
        ("1/0", "--vary x=1/0: ZeroDivisionError: division by zero."),
    ],
)
def test_what_cannot_be_evaluated(expression, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        values(expression)


def test_a_name_that_comes_twice():
    with pytest.raises(UsageError, match=r"^--vary lr: it is given twice"):
        labels(("lr", "1"), ("lr", "2"))

"""The best value of a metric: what counts as one, and which is better."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from jupyter_dtrain.engine.telemetry.best_metric import Best
from jupyter_dtrain.options import Metric


@pytest.mark.parametrize(("mode", "new"), [("min", [True, True, False, False]), ("max", [True, False, True, False])])
def test_a_better_one_is_new(mode, new):
    best = Best(Metric("m", mode))
    for value, expected in zip([2, 1.0, np.float32(3), 1.5], new, strict=True):
        best.is_new = False
        best.note(value)
        assert best.is_new is expected


@pytest.mark.parametrize("value", [None, "0.1", float("nan"), torch.ones(2), [1.0]])
def test_what_is_no_number_is_none(value):
    best = Best(Metric("m"))
    best.note(value)
    assert (best.value, best.is_new) == (None, False)


def test_what_the_cell_finds_in_the_notebook_is_not_of_this_run():
    best = Best(Metric("loss"))
    namespace: dict[str, object] = {"loss": 0.1}
    best.start(namespace)
    best.look(namespace)
    assert best.value is None
    namespace["loss"] = torch.tensor(0.5)
    best.look(namespace)
    assert best.value == 0.5


def test_a_loss_in_its_graph_is_read_without_a_warning():
    best = Best(Metric("loss"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        best.note(torch.tensor(2.0, requires_grad=True) * 2)
    assert best.value == 4.0


def test_another_process_goes_on_from_it():
    before, after = Best(Metric("loss")), Best(Metric("loss"))
    before.note(0.5)
    after.load_state_dict(before.state_dict())
    after.note(0.6)
    assert not after.is_new
    after.note(0.4)
    assert after.is_new

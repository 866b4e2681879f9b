"""The best value of a metric: what counts as one, and which is better."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from jupyter_dtrain.engine.telemetry.best_metric import Best
from jupyter_dtrain.engine.telemetry.observer import Observer
from jupyter_dtrain.options import Metric
from jupyter_dtrain.protocol import Scalars


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


class Cell:
    """What an observer sees of a cell that sets `score` in its outermost loop."""

    def __init__(self, **namespace):
        self.observer = Observer(0, Best(Metric("score")))
        self.namespace = namespace
        assert self.observer.best is not None
        self.observer.best.start(namespace)

    def boundary(self, *, step, **namespace):
        """Begin an iteration of the outermost loop."""
        self.observer.step = step
        self.namespace.update(namespace)
        self.observer.follow_metric(self.namespace)

    def end(self, *, step, **namespace):
        self.observer.step = step
        self.namespace.update(namespace)
        self.observer.log_metric(self.namespace)

    def logged(self):
        """Return the points that are new: their number, from 0, their step and value."""
        return [
            (scalars.first + number, step, value)
            for scalars in self.observer.drain()
            if isinstance(scalars, Scalars)
            for number, (step, value) in enumerate(zip(scalars.step, scalars.value, strict=True))
        ]

    def continued(self):
        """Return it as another process goes on with it."""
        other = Cell(**self.namespace)
        other.observer.load_state_dict(self.observer.state_dict())
        return other


def test_a_variable_is_followed_once_for_each_iteration_that_trains():
    cell = Cell(score=7)
    cell.boundary(step=0)
    assert cell.logged() == [], "that one is the notebook's"
    cell.boundary(step=10, score=5)
    cell.boundary(step=10, score=4)  # no step was made since
    cell.boundary(step=20, score=5)  # no better is as good as any
    assert cell.logged() == [(0, 10, 5.0), (1, 20, 5.0)]
    cell.end(step=30, score=3)
    assert cell.logged() == [(2, 30, 3.0)]


def test_the_last_value_is_logged_where_it_was_set_after_the_last_step():
    cell = Cell()
    cell.boundary(step=10, score=5)
    cell.end(step=10, score=5)
    assert cell.logged() == [(0, 10, 5.0)]
    cell.end(step=10, score=4)
    assert cell.logged() == [(1, 10, 4.0)]


def test_a_cell_that_logs_the_metric_is_not_followed():
    cell = Cell()
    cell.observer.step = 5
    cell.observer.log({"score": 0.5})
    cell.boundary(step=10, score=5)
    cell.end(step=20, score=4)
    assert cell.logged() == [(0, 5, 0.5)]


def test_another_process_follows_on_where_it_was():
    cell = Cell()
    cell.boundary(step=10, score=5)
    assert cell.logged() == [(0, 10, 5.0)]
    other = cell.continued()
    other.boundary(step=10)  # where the snapshot was taken
    other.boundary(step=20, score=5)  # the very object that it has found
    assert other.logged() == [(1, 20, 5.0)]
    other.observer.log({"score": 1.0})
    assert other.logged() == [(2, 20, 1.0)]
    last = other.continued()
    last.boundary(step=30, score=2)
    assert last.logged() == []

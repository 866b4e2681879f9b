"""What a run records of its hyperparameters by itself, and what the cell adds by name."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from jupyter_dtrain.engine.telemetry.described_objects import MAX_TEXT, plain
from jupyter_dtrain.engine.telemetry.hyperparameters import HyperparameterLog
from jupyter_dtrain.protocol import Hyperparameters
from jupyter_dtrain.runs.rank_reports import KnownHyperparameters


def found(log, known=None):
    """What a record has after all that `log` has told."""
    known = known or KnownHyperparameters()
    for message in log.drain():
        assert isinstance(message, Hyperparameters)
        known.note(message)
    return known.take() or {}


def stepped(log, *optimizers):
    for optimizer in optimizers:
        log.on_optimizer_step(optimizer)
    return found(log)


def net(width=4):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))


@pytest.fixture
def log():
    torch.manual_seed(7)
    return HyperparameterLog(rank=0)


def test_an_optimizer_its_groups_and_its_model_are_described_at_its_first_step(log):
    model = net()
    model[0].bias.requires_grad_(requires_grad=False)
    log.modules = lambda: [model, *model]
    groups = [{"params": model[0].weight, "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.01}]
    values = stepped(log, torch.optim.AdamW(groups, weight_decay=0.05))
    assert values == {
        "seed": 7,
        "optimizer": "AdamW",
        "optimizer.lr": "[0.1, 0.01]",
        "optimizer.betas": "(0.9, 0.999)",
        "optimizer.eps": 1e-8,
        "optimizer.weight_decay": 0.05,
        "optimizer.decoupled_weight_decay": True,
        "optimizer.groups": 2,
        "model": "Sequential",
        "model.parameters": 21,
        "model.trained_parameters": 17,
    }
    groups[0]["lr"] = 9.0
    assert found(log) == {}


def test_two_optimizers_have_names_of_their_own_and_folds_that_are_alike_count_once(log):
    first, second = net(), nn.Linear(3, 1)
    log.modules = lambda: [first, second]
    values = stepped(log, torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9), torch.optim.SGD(second.parameters(), lr=0.2))
    assert (values["optimizer.lr"], values["optimizer.momentum"], values["optimizer2.lr"]) == (0.1, 0.9, 0.2)
    assert (values["model"], values["model2"], values["model2.parameters"]) == ("Sequential", "Linear", 4)
    for _ in range(20):
        log.on_optimizer_step(torch.optim.SGD(net().parameters(), lr=0.1, momentum=0.9))
    assert found(log) == {}


def test_schedulers_are_described_whoever_has_made_them(log):
    sgd = torch.optim.SGD(net().parameters(), lr=0.5)
    before = lr_scheduler.StepLR(sgd, step_size=3, gamma=0.5)
    with log.installed([before]):
        inside = torch.optim.SGD(net().parameters(), lr=0.4)
        parts = [lr_scheduler.LinearLR(inside, start_factor=0.5, total_iters=2), lr_scheduler.CosineAnnealingLR(inside, T_max=9)]
        lr_scheduler.SequentialLR(inside, parts, milestones=[2])
        values = stepped(log, sgd, inside)
        lr_scheduler.MultiStepLR(torch.optim.SGD(net().parameters(), lr=0.3), milestones=[7, 3, 7])
        late = lr_scheduler.ReduceLROnPlateau(sgd, patience=4)
    values |= found(log)
    assert (values["scheduler"], values["scheduler.step_size"], values["scheduler.gamma"]) == ("StepLR", 3, 0.5)
    assert (values["scheduler2"], values["scheduler2.milestones"]) == ("SequentialLR", "[2]")
    assert (values["scheduler2.1"], values["scheduler2.1.total_iters"], values["scheduler2.2.T_max"]) == ("LinearLR", 2, 9)
    assert (values["scheduler3"], values["scheduler3.milestones"]) == ("MultiStepLR", "[3, 7]")
    assert (values["scheduler4"], values["scheduler4.patience"]) == ("ReduceLROnPlateau", late.patience)
    assert (values["optimizer2.lr"], values["optimizer2.initial_lr"]) == (0.2, 0.4)
    assert lr_scheduler.LRScheduler.__init__.__name__ == "__init__"
    assert not hasattr(lr_scheduler.LRScheduler.__init__, "__wrapped__"), "PyTorch is as it was"


def test_a_loader_says_its_batch_size_and_its_data(log):
    data = TensorDataset(torch.zeros(45, 3))
    log.on_loader(DataLoader(data, batch_size=8, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(3)), 2)
    values = found(log)
    assert values == {
        "seed": 7,
        "batch_size": 16,
        "dataset": "TensorDataset",
        "dataset.size": 45,
        "shuffle": True,
        "drop_last": True,
        "loader.seed": 3,
    }
    log.on_loader(DataLoader(data, batch_size=5))
    assert found(log)["batch_size2"] == 5


def test_a_cell_that_updates_by_hand_has_its_models(log):
    model = net()
    log.modules = lambda: [model]
    log.on_loader(DataLoader(TensorDataset(torch.zeros(4, 3)), batch_size=2))
    log.finish()
    assert (values := found(log))["model"] == "Sequential"
    assert "optimizer" not in values


def test_a_loader_that_weights_without_a_model_are_trained_on_is_that_of_the_last_batch_before_a_backward_pass(log):
    data = TensorDataset(torch.zeros(4, 3))
    train, valid = DataLoader(data, batch_size=2), DataLoader(data, batch_size=4)
    log.on_batch(valid)
    log.on_batch(train)
    assert not found(log)
    log.on_backward()
    values = found(log)
    assert (values["batch_size"], values["seed"]) == (2, 7)
    log.on_batch(valid)
    log.on_backward()  # of what is looked at in an evaluation
    assert not found(log)
    log.on_batch(train)
    log.on_batch(valid)
    log.on_batch()  # a batch of a loader that a model in training mode is known to be trained on
    assert "batch_size2" not in stepped(log, torch.optim.SGD(net().parameters(), lr=0.5))
    with torch.no_grad():
        log.on_batch(valid)
    assert "batch_size2" not in stepped(log, torch.optim.SGD(net().parameters(), lr=0.25))
    log.on_batch(valid)  # a model that stays in evaluation mode
    assert stepped(log, torch.optim.SGD(net().parameters(), lr=0.125))["batch_size2"] == 4


def test_a_cell_without_loader_and_optimizer_has_its_seed(log):
    log.on_backward()
    assert found(log) == {"seed": 7}


def test_what_is_given_by_name_wins_and_the_last_of_it(log):
    log.config({"lr": 1, "optimizer.lr": "mine"})
    log.config({"lr": 2})
    values = stepped(log, torch.optim.SGD(net().parameters(), lr=0.5))
    assert (values["lr"], values["optimizer.lr"]) == (2, "mine")


def test_a_run_that_goes_on_says_the_same_as_before(log):
    sgd = torch.optim.SGD(net().parameters(), lr=0.5)
    other = torch.optim.SGD(net().parameters(), lr=0.25)
    log.config({"note": "x"})
    log.on_optimizer_step(sgd)
    state = log.state_dict()
    log.drain()  # which the process has not sent before it died
    sgd.param_groups[0]["lr"] = 0.005
    again = HyperparameterLog(rank=0)
    again.load_state_dict(state)
    values = stepped(again, sgd, other)
    assert (values["optimizer.lr"], values["optimizer2.lr"], values["note"]) == (0.5, 0.25, "x")


def test_ranks_but_the_first_look_at_nothing():
    log = HyperparameterLog(rank=1)
    log.config({"a": 1})
    log.on_loader(DataLoader(TensorDataset(torch.zeros(4)), batch_size=2))
    assert stepped(log, torch.optim.SGD(net().parameters(), lr=0.5)) == {}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (torch.tensor(0.5), 0.5),
        (np.float32(0.25), 0.25),
        (np.int64(3), 3),
        (True, True),
        (None, None),
        (math.inf, "inf"),
        (2**60, str(2**60)),
        ((0.9, torch.tensor(1)), "(0.9, 1)"),
        (torch.zeros(2, 3), "tensor of shape (2, 3)"),
        (nn.functional.relu, "relu"),
        (nn.Linear, "Linear"),
        (torch.float64, "torch.float64"),
        ("x" * 500, "x" * (MAX_TEXT - 1) + "…"),
    ],
)
def test_values_are_numbers_texts_and_truth_values(value, shown):
    assert plain(value) == shown
    assert type(plain(value)) is type(shown)

"""Gradients of what each rank has for itself with ``--semantics local``: those of its own loss, as with DistributedDataParallel."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.engine.ranks import run_notebook

SETUP = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(22, 4), torch.randn(22, 1)), batch_size=8)  # the last batch has other shares
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scale = torch.randn(4, requires_grad=True)
seen = []
"""
CELL = """
for x, y in loader:
    optimizer.zero_grad()
    {own}
    F.mse_loss(model({used} * scale), y).backward({inputs})
    weights = [p.detach().clone() for p in (*model.parameters(), scale)]
    seen.append((weights, x.detach().clone(), y, own.grad.clone(), None if scale.grad is None else scale.grad.clone()))
    optimizer.step()
"""
OWN = {
    "a batch": ("own = x.requires_grad_()", "x", ""),
    "a copy": ("own = x.clone().requires_grad_()", "own", ""),
    "noise": ("own = (x.abs() * 0.01).requires_grad_()", "(x + own)", ""),
    "alone": ("own = x.requires_grad_()", "x", "inputs=[x]"),
    "twice": ("own = x.requires_grad_(); F.mse_loss(model(x), y).backward(); own.grad = None", "x", ""),
}


@pytest.mark.parametrize("case", OWN)
@pytest.mark.parametrize("size", [2, 3])
def test_gradients_of_own_leaves_are_left_alone(ranks, case, size):
    own, used, inputs = OWN[case]
    found = ranks.call(size, run_notebook, SETUP, CELL.format(own=own, used=used, inputs=inputs), "seen", {"global_numbers": False})
    for rank in found:
        for step, (weights, x, y, gradient, of_scale) in enumerate(rank["compared"]):
            model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
            *of_model, scale = weights
            for parameter, values in zip(model.parameters(), of_model, strict=True):
                parameter.data = values
            x.requires_grad_()
            plus = (x.detach().abs() * 0.01) if case == "noise" else 0.0
            F.mse_loss(model((x + plus) * scale), y).backward()
            torch.testing.assert_close(gradient, x.grad)
            *same, first_of_scale = (found[0]["compared"][step][index] for index in (0, 4))
            torch.testing.assert_close(weights, same[0])
            torch.testing.assert_close(of_scale, first_of_scale)


def test_a_leaf_that_is_equal_on_all_ranks_is_told_of(ranks):
    """It may be a weight, or what the cell adds to a batch: then its gradient is one of all of them."""
    cell = CELL.format(own="own = torch.zeros(2, 4)[:1].requires_grad_()", used="(x + own)", inputs="")
    first, *others = ranks.call(2, run_notebook, SETUP, cell, "[s[3] for s in seen]", {"global_numbers": False})
    assert sum("averages the gradient of a tensor of shape (" in note for note in first["notes"]) == 1
    for other in others:
        torch.testing.assert_close(other["compared"], first["compared"])

"""Hooks of the notebook's parameters that the cell registers or removes are as they were when it resumes after a lost engine."""

from __future__ import annotations

import pytest

from tests.faults.test_corpus_killed import assert_same_where_one_dies, notebook
from tests.notebook.corpus_cells import CorpusCell

__all__ = ["notebook"]  # a fixture

SETUP = """
from collections import Counter
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(60, 5), torch.randn(60, 1)), batch_size=10)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
calls = Counter()
old = model[0].weight.register_hook(lambda gradient: calls.update(["old"]) or gradient * 0.5)
"""
CELL = """
new = model[2].weight.register_hook(lambda gradient: calls.update(["new"]) or gradient * 2)
model[2].bias.register_post_accumulate_grad_hook(lambda parameter: calls.update(["after"]))
old.remove()
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
new.remove()
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize("thirds", [1, pytest.param(2, marks=pytest.mark.long)])
def test_hooks_are_as_they_were(notebook, thirds):
    cell = CorpusCell(name="hooks", setup=SETUP, cell=CELL, compare="{**model.state_dict(), 'calls': dict(calls)}", tolerance=1e-9)
    assert_same_where_one_dies(notebook, cell, 1, thirds, at_once=False)

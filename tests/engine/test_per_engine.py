"""What docs/semantics/exact.md says that each engine has of its own: together it is what one process has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.engine.ranks import run_notebook, run_plain

SETUP = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(8, 3), torch.randn(8, 2)), batch_size=8)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
seen = []
"""
STEP = "for x, y in loader: F.mse_loss(model(x), y).backward()"


def found(ranks: Any, setup: str, cell: str, expression: str) -> tuple[Any, list[Any]]:
    """Return what an expression is on one process, and on each of two ranks with half of the batch."""
    plain = ranks.call(1, run_plain, SETUP + setup, cell, expression)[0]["compared"]
    return plain, [of_rank["compared"] for of_rank in ranks.call(2, run_notebook, SETUP + setup, cell, expression, {})]


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_old_backward_hooks_of_modules_show_gradients_of_the_share(ranks):
    hook = "model[2].register_backward_hook(lambda module, into, out: seen.append(out[0].clone()))\n"
    plain, of_ranks = found(ranks, "", hook + STEP, "seen[0]")
    assert [gradient.shape[0] for gradient in of_ranks] == [4, 4]
    torch.testing.assert_close(torch.cat(of_ranks) / 2, plain)  # each is that of the mean over its share


def test_hooks_of_the_nodes_of_a_graph_show_what_the_rank_computes(ranks):
    cell = """
for x, y in loader:
    out = model(x)
    out.grad_fn.register_hook(lambda into, out: seen.append(out[0].clone()))
    F.mse_loss(out, y).backward()
"""
    plain, of_ranks = found(ranks, "", cell, "seen[0]")
    torch.testing.assert_close(torch.cat(of_ranks) / 2, plain)

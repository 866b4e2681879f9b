"""Running statistics of normalization: each rank normalizes over its share, and all evaluate with the same numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.ranks import run_notebook, run_plain
from tests.notebook.corpus_cells import apart

SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(24, 3), torch.randn(24, 1)), batch_size=8)
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
"""
TRAIN_AND_EVALUATE = """
from jupyter_dtrain import api
losses, first = [], None
for epoch in range(3):
    model.train()
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if first is None:
            first = api.gather(model[1].running_mean.tolist())
    model.eval()
    with torch.no_grad():
        losses.append(sum(((model(x) - y) ** 2).sum().item() for x, y in loader))
    scheduler.step(losses[-1])
"""


@pytest.mark.parametrize("split", [False, True])
def test_what_is_read_in_evaluation_is_the_same_on_every_rank(ranks, split):
    compare = "losses, scheduler.get_last_lr(), model.state_dict()"
    found: list[Any] = [
        rank["compared"] for rank in ranks.call(3, run_notebook, SETUP, TRAIN_AND_EVALUATE, compare, {"split_evaluation": split})
    ]
    for losses, rates, state in found[1:]:
        assert losses == found[0][0]
        assert rates == found[0][1]
        assert all(value.equal(found[0][2][name]) for name, value in state.items())


def test_the_statistics_are_those_of_rank_0(ranks):
    (first, of_rank_0), *_ = (
        rank["compared"] for rank in ranks.call(2, run_notebook, SETUP, OF_RANK_0 + TRAIN_AND_EVALUATE, "first, of_rank_0.tolist()")
    )
    assert first[0] == first[1]
    assert first[0] == pytest.approx(of_rank_0)


OF_RANK_0 = """
with torch.no_grad():
    of_rank_0 = 0.1 * nn.functional.linear(loader.dataset.tensors[0][:4], model[0].weight, model[0].bias).mean(0)
"""


def test_a_model_that_computes_its_loss_counts_a_batch_once(ranks):
    """Its first call is made again, as that of a model whose result has no row per sample."""
    setup = (
        SETUP + "class Net(nn.Sequential):\n    def forward(self, x, y): return ((super().forward(x) - y) ** 2).mean()\nmodel = Net(*model)"
    )
    compare = "model[1].num_batches_tracked.item(), model[1].running_mean.tolist(), of_rank_0.tolist()"
    for rank in ranks.call(2, run_notebook, setup, OF_RANK_0 + "x, y = next(iter(loader))\nmodel(x, y).backward()", compare):
        number, mean, expected = rank["compared"]
        assert number == 1
        assert mean == pytest.approx(expected)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_batch_of_which_a_rank_has_one_sample_or_none_is_normalized_whole(ranks, size):
    """On one sample there are no statistics, and PyTorch refuses to take them."""
    setup = SETUP.replace("batch_size=8", f"batch_size={size}").replace("(24, ", f"({size}, ")
    cell = "for x, y in loader:\n    loss = ((model(x) - y) ** 2).mean()\n    loss.backward()\n    optimizer.step()"
    (expected,) = ranks.call(1, run_plain, setup, cell, COMPARE)
    for rank in ranks.call(3, run_notebook, setup, cell, COMPARE):
        assert apart(rank["compared"], expected["compared"]) is None


COMPARE = "model.state_dict(), [p.grad for p in model.parameters()], loss.item()"

"""Samples and views of outputs that require gradients are one memory: what is written to one is in all, and in their gradients."""

from __future__ import annotations

import itertools

import pytest

from tests.engine.ranks import Ranks, run_notebook, run_plain
from tests.notebook.corpus_cells import apart

SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(22, 4)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
seen = []
"""
CELL = """
for x, in loader:
    f = model(x) + 0.1
    sample, other = {sample}, {other}
    {write}
    seen.append([t.tolist() for t in (f, sample, other)])
    model.zero_grad()
    (f.sin().sum() + (sample * 2).cos().sum() + other.pow(2).sum()).backward()
    seen.append([p.grad.tolist() for p in model.parameters()])
"""
SAMPLES = ("f[0]", "f[:2]", "f.T[0]", "f[1:].T", "f[0, 1]", "f.view(-1)[:3]", "f[-1][1:]")
OTHERS = ("f.T", "f[:, 1:]", "f.view(-1, 3, 1)", "f[:, :2][3]")
WRITES = {
    "the output": "f.mul_(2)",
    "a column": "f[:, 1].mul_(2); f[:, :2] *= 3",
    "its transpose": "f.T.add_(1)",
    "the other": "other.mul_(2); other.exp_()",
    "the sample, the other": "sample.mul_(2); other.mul_(3)",
    "the other, the sample, the output": "other.sub_(1); sample.mul_(3); f.add_(2)",
    "one without a rule": "other.arctan_(); f.T.arctan_()",
    "an entry": "f[2, 1] = 4.0; other[0] = 2.0; sample.zero_()",
}
UNTOLD = {
    "without gradients": "with torch.no_grad(): f.mul_(2); other.add_(1)",
    "by its data": "f.data.mul_(2); other.data.add_(1)",
    "detached": "f.detach().mul_(2); seen.append(sample.tolist()); other.detach().add_(1)",
    "without gradients or a rule": "with torch.no_grad(): f.arctan_(); other.arctan_()",
    "samples, without gradients": "with torch.no_grad(): f[1] = 0; f.T[0, 1] = 7; f.data[0] = 1.0",
    "detached, without a rule": "f.detach().arctan_(); f.detach()[2, 1] = 4.0; torch.add(f.detach(), 1, out=f.detach())",
    "the sample, detached": "sample.detach().mul_(2); f.detach()[:, 1].zero_()",
}
CELLS = [(sample, other, name, write) for sample, other in itertools.product(SAMPLES, OTHERS) for name, write in (WRITES | UNTOLD).items()]


@pytest.fixture(scope="module")
def ranks():
    with Ranks(most=3) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("sample", "other", "name", "write"),
    [pytest.param(*cell, id=" | ".join(cell[:3]), marks=() if number % 7 == 0 else pytest.mark.long) for number, cell in enumerate(CELLS)],
)
def test_what_is_written_to_one_is_in_the_others(ranks, sample, other, name, write):
    cell = CELL.format(sample=sample, other=other, write=write)
    if name in UNTOLD:  # what was computed before is not what PyTorch would derive by
        cell = cell[: cell.index("    model.zero_grad()")]
    (plain,) = ranks.call(1, run_plain, SETUP, cell, "seen")
    for world_size in (2, 3):
        first, *_ = ranks.call(world_size, run_notebook, SETUP, cell, "seen", {"global_draws": True, "global_batchnorm": True})
        assert apart(plain["compared"], first["compared"]) is None

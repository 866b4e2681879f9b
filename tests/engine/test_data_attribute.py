"""``x.data`` shares its memory with ``x`` and counts nothing: what is written to one is in the other, on all ranks, whatever was read."""

from __future__ import annotations

import pytest

from tests.engine.ranks import RankError, Ranks, run_notebook, run_plain
from tests.engine.test_zero3 import CLOSE, distance

SETUP = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
X = torch.rand(22, 3); Y = X.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)); opt = torch.optim.SGD(model.parameters(), 0.1)
seen, kept = [], []
def read(*tensors): seen.extend(t.tolist() for t in tensors)
def step(x, y): opt.zero_grad(); loss = F.mse_loss(model(x), y); loss.backward(); opt.step(); seen.append(loss.item())
"""
SHAPES = {
    "the batch by its data": "for x, y in loader: read(x); x.data.mul_(2); read(x); step(x, y)",
    "its data by the batch": "for x, y in loader: d = x.data; read(d); x.add_(1); read(d, x); step(d, y)",
    "one by one": """
for x, y in loader:
    d = x.data
    for i in range(len(x)): seen.append(x[i, 0].item()); d[i] *= i
    read(x, d); step(x, y)
""",
    "a view of its data": "for x, y in loader: v = x.data[:, 1]; read(v, x); x.data[:, :2].zero_(); read(v, x); step(x, y)",
    "outputs": "for x, y in loader: o = model(x); read(o); o.data.clamp_(0, 0.1); read(o); kept.append(o.detach())",
    "data of outputs": "for x, y in loader: o = model(x) * 2; d = o.data; read(d); d.add_(1); read(o, d); kept.append(d)",
    "inputs with gradients": """
for x, y in loader:
    x.requires_grad_(); F.mse_loss(model(x), y).backward(); read(x, x.grad)
    x.data += 0.1 * x.grad.sign(); x.data.clamp_(0, 1); x.grad.data.zero_(); read(x, x.grad)
    with torch.no_grad(): seen.append(model(x).mean().item())
""",
    "kept": "for x, y in loader: kept.append(x.data); read(kept[-1]); x.neg_(); step(x, y)",
    "of its data": "for x, y in loader: d = x.data.data; read(d, x); d.sub_(x.mean(0)); read(d, x, x.data); step(x, y)",
    "losses": """
for x, y in loader:
    l = F.mse_loss(model(x), y, reduction='none'); read(l); l.data[l.data > 0.1] = 0.1; read(l); kept.append(l.data)
""",
    "numbers": """
for x, y in loader:
    m = x.mean(); d = m.data; seen.append(m.item()); m.mul_(2); seen += [d.item(), m.item()]; kept.append(d)
""",
    "set": "for x, y in loader: d = x.data; read(x); x.data = d * 3; read(x, d); d.zero_(); read(x, d); step(x, y)",
    "set to what is whole": "for x, y in loader: read(x); x.data = X[:len(x)] * 2; read(x); step(x, y)",
    "set to another": "for x, y in loader: z = x * 2; read(x, z); x.data = z.data; z.add_(1); read(x, z); step(x, y)",
    "set numbers": """
for x, y in loader:
    m, n = x.mean(), y.mean(); seen.append(m.item()); m.data = n; seen.append(m.item()); kept.append(m)
""",
    "set a number": """
for x, y in loader:
    m = x.sum(); seen.append(m.item()); m.data = torch.tensor(5.0); seen.append(m.item()); kept.append(m)
""",
}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(3) as ranks:
        yield ranks


@pytest.mark.parametrize("cell", SHAPES.values(), ids=SHAPES)
def test_what_is_written_by_data_is_read_by_all(ranks, cell):
    state = "seen, kept, list(model.parameters())"
    (plain,) = ranks.call(1, run_plain, SETUP, cell, state)
    for world_size in (2, 3):
        for of_rank in ranks.call(world_size, run_notebook, SETUP, cell, state):
            assert distance(plain["compared"], of_rank["compared"]) < CLOSE


def test_data_of_another_shape_is_refused(ranks):
    with pytest.raises(RankError, match=r"of shape \(8, 3\), which spans the ranks, was set to one of shape \(2, 3\)"):
        ranks.call(2, run_notebook, SETUP, "for x, y in loader: x.data = torch.zeros(2, 3)", "0")

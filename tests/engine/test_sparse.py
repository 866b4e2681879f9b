"""Sparse gradients, of tables that every rank, some or none has looked up: numbers, layouts and what is missing as on one process."""
# ruff: noqa: E501  # a table: one case a line

from __future__ import annotations

import pytest

from tests.conftest import in_turn
from tests.engine.ranks import run_notebook, run_plain
from tests.notebook.corpus_cells import apart

SETUP = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
X = torch.randn(50, 4); Y = X.sin().sum(1, keepdim=True)
ids = (X[:, 0].abs() * 3).long().clamp(max=9)
loader = DataLoader(TensorDataset(ids, Y), batch_size=8)
seen, errors = [], []

class Net(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.a, self.b, self.h = make(), make(), nn.Linear(4, 1)
    def forward(self, i): return self.h(self.a(i))

class Some(Net):
    def forward(self, i):
        out, rare = self.a(i), i > 6
        if rare.any(): out = out + rare[:, None] * self.b(i)
        return self.h(out)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.o = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 10, bias=False)
        self.o.weight = self.a.weight
    def forward(self, i): return self.o(self.a(i)).logsumexp(1, keepdim=True)

class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.v, self.h = nn.Parameter(torch.randn(10, 4)), nn.Parameter(torch.randn(10, 4)), nn.Linear(4, 1)
    def forward(self, i): return self.h(F.embedding(i, self.w, sparse=True))

def sparse(**more): return nn.Embedding(10, 4, sparse=True, **more)

class Bag(nn.EmbeddingBag):
    def forward(self, i): return super().forward(i[:, None].expand(-1, 2).contiguous())
"""
TRAIN = """
for i, y in loader:
    opt.zero_grad(); loss = F.mse_loss(net(i), y); loss.backward(); opt.step(); seen.append(loss.item())
"""
SGD = "opt = torch.optim.SGD(net.parameters(), lr=0.1)"
GRADS = "[None if p.grad is None else (str(p.grad.layout), p.grad.to_dense().tolist()) for p in net.parameters()]"
BY_HAND = """
for i, y in loader:
    found = torch.autograd.grad(F.mse_loss(net(i), y), [net.a.weight, net.h.weight])
    seen.append([*(g.to_dense().norm().item() for g in found), str(found[0].layout), found[0].coalesce().indices().tolist()])
"""
CASES = {
    "by torch.autograd.grad": ("net = Net(sparse)", SGD, BY_HAND + TRAIN),
    "one of two": ("net = Net(sparse)", SGD, TRAIN),
    "of some ranks": ("net = Some(sparse)", SGD, TRAIN),
    "dense, of some ranks": ("net = Some(lambda: nn.Embedding(10, 4))", SGD, TRAIN),
    "dense, of some ranks, with a hook": (
        "net = Some(lambda: nn.Embedding(10, 4)); net.b.weight.register_hook(lambda g: g.clamp(-0.01, 0.01))",
        SGD,
        TRAIN,
    ),
    "tied to a dense layer": ("net = Tied()", SGD, TRAIN),
    "a plain parameter": ("net = Functional()", SGD, TRAIN),
    "in the cell": ("net = Functional()", SGD, TRAIN.replace("net(i)", "net.h(F.embedding(i, net.w, sparse=True))")),
    "bags": ("net = Net(lambda: Bag(10, 4, sparse=True, mode='sum'))", SGD, TRAIN),
    "frozen": ("net = Net(sparse); net.a.weight.requires_grad_(False)", SGD, TRAIN),
    "scaled to a norm": ("net = Net(lambda: sparse(max_norm=1.0))", SGD, TRAIN),
    "one and the other in turn": (
        "net = Net(sparse)",
        SGD,
        TRAIN.replace("for i, y in loader", "for n, (i, y) in enumerate(loader)").replace(
            "net(i)", "net.h(net.a(i) if n % 2 else net.b(i))"
        ),
    ),
    "two passes": ("net = Net(sparse)", SGD, TRAIN.replace("loss.backward()", "loss.backward(); (net.b(i) ** 2).mean().backward()")),
    "accumulated": (
        "net = Net(sparse)",
        SGD,
        "for n, (i, y) in enumerate(loader):\n    loss = F.mse_loss(net(i), y); loss.backward(); seen.append(loss.item())\n    if n % 3 == 2: opt.step(); opt.zero_grad()\n",
    ),
    "SparseAdam": ("net = Net(sparse)", "opt = torch.optim.SparseAdam([net.a.weight, net.b.weight], lr=0.1)", TRAIN),
    "an optimizer that refuses them": (
        "net = Net(sparse)",
        "opt = torch.optim.Adam(net.parameters())",
        TRAIN.replace("opt.step();", "\n    try: opt.step()\n    except RuntimeError as error: errors.append(str(error))\n   "),
    ),
    "how many entries": (
        "net = Net(sparse)",
        SGD,
        TRAIN + "    g = net.a.weight.grad; seen.append((g.is_coalesced(), g._indices().unique().tolist()))\n",
    ),
}


@pytest.mark.parametrize(("name", "world_size"), in_turn(CASES, [2, 3]))
def test_sparse_gradients_are_those_of_one_process(ranks, name, world_size):
    net, optimizer, cell = CASES[name]
    setup, compare = f"{SETUP}{net}\n{optimizer}\n", f"(seen, errors, {GRADS}, [p.tolist() for p in net.parameters()])"
    (plain,) = ranks.call(1, run_plain, setup, cell, compare)
    for found in ranks.call(world_size, run_notebook, setup, cell, compare, {"global_draws": True}):
        assert apart(found["compared"], plain["compared"], 1e-9) is None

"""What lies in memory in another order than its dims has the strides of one process, and draws its random numbers in that order."""

from __future__ import annotations

import pytest

from tests.engine.ranks import Ranks, run_notebook, run_plain
from tests.notebook.corpus_cells import apart

SETUP = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
X = torch.randn(22, 6)
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU())
class Noisy(nn.Module):
    def forward(self, x):
        z = x.clone()
        z[:, 1:].normal_(), z.T[1:3].normal_()
        return z
"""
MADE = (
    *(
        "f",
        "f.T",
        "f.T[:3]",
        "f.T[1:].T",
        "f.T[0]",
        "f.T[::2] * 2",
        "f[:, 1:7:2]",
        "f.t().narrow(0, 1, 3)",
        "f.transpose(0, 1)[:2].clone()",
    ),
    *("f.view(-1, 2, 5)[:, 0]", "f.view(-1, 2, 5).transpose(1, 2)", "f.view(-1, 2, 5).permute(2, 0, 1)[1]", "f.swapaxes(0, 1)[None]"),
    *(
        "f.unsqueeze(0)[:, :, :2]",
        "f.T.unfold(0, 2, 1)",
        "f.T.reshape(2, 5, -1)",
        "f.expand(2, *f.shape)",
        "f.T.contiguous()",
        "f.diagonal()",
    ),
    *(
        "f.T.flip(0)",
        "f.T.relu()",
        "f.T.softmax(0)",
        "f.T.cumsum(0)",
        "f.T.roll(1, 0)",
        "f.T.repeat(2, 1)",
        "f.T.topk(2, 0)[0]",
        "f.T.sort(0)[0]",
    ),
    *("torch.stack([f.T, f.T])", "torch.cat([f.T, f.T])", "f.T.masked_fill(f.T > 0, 0)", "torch.where(f.T > 0, f.T, 1.0)", "f.T + f.T[0]"),
    *(
        "f.T.gather(0, torch.zeros(1, len(x), dtype=torch.long))",
        "f.T.mean(0, keepdim=True)",
        "torch.einsum('bi->ib', f)",
        "f.T.detach()[1:3]",
    ),
    *("F.dropout(f.T, 0.5)", "F.dropout(f.T[:4], 0.5)", "torch.rand_like(f.T)", "torch.bernoulli(f.T.sigmoid())", "torch.zeros_like(f.T)"),
    *("x.T[:3]", "(x.T + 1)[:3]", "x.T[:, None].expand(-1, 2, -1)", "x.view(-1, 3, 1, 2).to(memory_format=torch.channels_last)[:, 1:]"),
    *(
        "F.conv2d(x.view(-1, 3, 1, 2).to(memory_format=torch.channels_last), torch.ones(4, 3, 1, 1))",
        "nn.GRU(2, 3, batch_first=True)(x.view(-1, 3, 2))[0]",
    ),
)
CELL = f"""
found = []
for x, in loader:
    for made in {MADE!r}:
        for grads in (True, False):
            with torch.set_grad_enabled(grads):
                f = model(x) + 0.1
                r = eval(made)
                drawn = torch.rand_like(r)
            found.append((made, grads, r.shape, r.stride(), r.is_contiguous(), r.tolist(), drawn.tolist(), drawn.stride()))
            found.append((F.dropout(r, 0.3).tolist(), torch.empty_like(r).normal_().tolist()))
            found.append((made, "in place", r.detach().clone().normal_().tolist()))
    x[:, 1:].normal_(), x.T[2:4].normal_(1, 2), x.view(-1, 2, 3)[:, :, 1:].normal_(), nn.init.trunc_normal_(x[:, 3:]), x[:, ::2].uniform_()
    z = model(x).detach()
    z[:, 2:].normal_()
    found.append(("gaps", "in place", x.tolist(), z.tolist(), Noisy()(x).tolist()))
    x[0] = torch.inf
    m, s = x.mean(), x.sum(0)
    m.log_(), s.abs_()
    found.append(("infinite", "in place", m.item(), s.tolist()))
"""


@pytest.fixture(scope="module")
def ranks():
    with Ranks(most=3) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("world_size", "batch_size"), [(2, 8), pytest.param(3, 8, marks=pytest.mark.long), (2, 3), pytest.param(3, 5, marks=pytest.mark.long)]
)
def test_strides_and_draws_are_those_of_one_process(ranks, world_size, batch_size):
    setup = SETUP + f"loader = DataLoader(TensorDataset(X[:{batch_size * 2}]), batch_size={batch_size})"
    (plain,) = ranks.call(1, run_plain, setup, CELL, "found")
    first, *_ = ranks.call(world_size, run_notebook, setup, CELL, "found", {"global_draws": True, "global_batchnorm": True})
    differ = [(one[:2], other) for one, other in zip(plain["compared"], first["compared"], strict=True) if apart(one, other)]
    assert not differ


RESHAPED = (
    "o[:, 1:].reshape(-1, 6)",
    "o[:, 1:].flatten(0, 1)",
    "o[:, :2].flatten(1)",
    "o[..., ::2].reshape(len(o), -1)",
    "o.transpose(1, 2).reshape(len(o), -1)",
    "o[:, 1:].ravel()",
    "o[:, 2:4].contiguous()",
    "o.transpose(0, 1).reshape(-1, 6)",
    "o[:, :, 0].reshape(-1)",
    "o.permute(1, 0, 2).contiguous().view(-1, 6)",
    "o[:, 0].reshape(-1, 2, 3)",
    "o[:, 1:].reshape(-1, 6).reshape(-1, 4, 6)[:, 0]",
)
"""Views of a single sample, most of them, and copies of several."""
RESHAPING = f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.g = nn.Linear(4, 6), nn.GRU(4, 6, batch_first=True)
    def forward(self, x): return self.f(x), self.g(x)[0], x @ (x.mT @ self.f(x))
model = Net()
loader = DataLoader(TensorDataset(torch.randn(11, 5, 4)), batch_size=7)
found = []
for x, in loader:
    for made in {RESHAPED!r}:
        for number in range(3):
            for way in ("read", "written to", "detached", "passed back"):
                o = model(x)[number]
                if way == "detached": o = o.detach()
                kept = eval(made)
                if way == "passed back": kept.pow(2).sum().backward()
                if way in ("written to", "detached"): kept[0] = 0.0
                found.append((made, number, way, kept.tolist(), o.tolist(), kept.sum().item(), o.sum().item()))
last, own = o, kept
"""


@pytest.mark.parametrize("world_size", [3, pytest.param(2, marks=pytest.mark.long)])
def test_what_is_a_copy_of_all_samples_is_one_on_ranks_with_one_sample(ranks, world_size):
    """The last batch has one sample on two of three ranks, whose part of a reshaped tensor would be a view."""
    (plain,) = ranks.call(1, run_plain, SETUP, RESHAPING, "(found, last, own)")
    first, *_ = ranks.call(world_size, run_notebook, SETUP, RESHAPING, "(found, last, own)", {"global_draws": True})
    differ = [(one[:3], other) for one, other in zip(plain["compared"][0], first["compared"][0], strict=True) if apart(one, other)]
    assert not differ
    assert apart(plain["compared"][1:], first["compared"][1:]) is None

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
    "computed with, and the batch written to": """
for x, y in loader:
    d = x.data; loss = F.mse_loss(model(d), y); x.mul_(2); opt.zero_grad(); loss.backward(); opt.step()
    read(d, x); seen.append(loss.item())
""",
    "computed with, and its data written to": """
for x, y in loader:
    loss = F.mse_loss(model(x), y); x.data.mul_(2); opt.zero_grad(); loss.backward(); opt.step(); read(x); seen.append(loss.item())
""",
    "a loss that was read": """
for x, y in loader:
    loss = F.mse_loss(model(x), y); seen.append(loss.item()); loss.data.clamp_(max=0.1); seen.append(loss.item())
    opt.zero_grad(); loss.backward(); opt.step(); kept.append(loss.detach())
""",
    "a loss, by a name": """
for x, y in loader:
    loss = F.mse_loss(model(x), y); d = loss.data; read(d, loss); d.mul_(3); read(loss, d); loss.mul_(2); read(loss, d); kept.append(d)
""",
    "a sum of losses": """
total = 0.0
for x, y in loader:
    total = total + F.l1_loss(model(x), y).data; seen.append(total.item())
    if total > 0.5: total.data.zero_()
kept.append(total)
""",
    "weights of samples": """
for x, y in loader:
    w = torch.ones_like(y); seen.append(w.sum().item()); w.data[y.data > 1] = 2; seen.append(w.sum().item())
    opt.zero_grad(); loss = (w * (model(x) - y) ** 2).mean(); loss.backward()
    w.data.fill_(7); opt.step(); read(w); seen.append(loss.item())
""",
    "of what is detached": """
for x, y in loader:
    e = x.detach(); read(e); x.data.add_(1); read(e, x); e.data.mul_(2); read(e, x); step(e, y)
""",
    "a view before": """
for x, y in loader:
    v = x[:, 1]; read(v); d = x.data; d.mul_(2); read(v, x); v.data.add_(1); read(v, x, d); step(x, y)
""",
    "in functions of a transform": """
for x, y in loader:
    d = x.data; read(d)
    g = torch.func.vmap(torch.func.grad(lambda r: (r ** 2).sum()))(d); d.mul_(2); read(g, d, x); step(x, y)
""",
    "without gradients": """
for x, y in loader:
    with torch.no_grad(): o = model(x); d = o.data; read(o); d.sub_(1); read(o, d); o.data.mul_(2); read(d)
    with torch.inference_mode(): p = model(x); p.data.add_(1); read(p)
""",
    "sample by sample": """
for x, y in loader:
    for i in range(len(x)): x.data[i] /= 1 + x.data[i].sum(); seen.append(x.data[i].sum().item())
    step(x, y)
""",
    "set to a tensor that is written to": """
for x, y in loader:
    z = X[:len(x)].clone(); x.data = z; read(x); z.mul_(2); read(x); x.add_(1); read(z); step(x, y)
""",
    "set while a sample is held": """
for x, y in loader:
    image = x[0]; read(image); x.data = X[:len(x)] * 2; image.mul_(2); read(image, x); step(x, y)
""",
    "a sample that is held": """
for x, y in loader:
    image, e, d = x[0], x.detach(), x.data; read(image); e.mul_(2); read(image, x); d.add_(1); read(image, x, e)
    image.neg_(); read(x, e, d); step(x, y)
""",
    "an array of what is detached": """
for x, y in loader:
    a = x.detach().numpy(); a /= a.sum(); read(x); step(x, y); a[0] = 1; step(x, y); kept.append(x)
""",
    "an array of its data": "for x, y in loader: a = x.data.numpy(); a -= a.mean(0); step(x, y); a *= 2; read(x); step(x.cpu(), y)",
    "an array of outputs": """
for x, y in loader:
    o = model(x); a = o.detach().numpy(); a[:] = 1; read(o); seen.append(o.sum().item()); kept.append(o.detach())
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


STATE = "seen, kept, list(model.parameters())"


def assert_as_in_one_process(ranks, cell, *, world_sizes=(2, 3), setup=SETUP, state=STATE):
    """Run `cell` plain and on ranks, and compare `state`."""
    (plain,) = ranks.call(1, run_plain, setup, cell, state)
    for world_size in world_sizes:
        for of_rank in ranks.call(world_size, run_notebook, setup, cell, state):
            assert distance(plain["compared"], of_rank["compared"]) < CLOSE


@pytest.mark.parametrize("cell", SHAPES.values(), ids=SHAPES)
def test_what_is_written_by_data_is_read_by_all(ranks, cell):
    assert_as_in_one_process(ranks, cell)


def test_data_of_another_shape_is_refused(ranks):
    with pytest.raises(RankError, match=r"of shape \(8, 3\), which spans the ranks, was set to one of shape \(2, 3\)"):
        ranks.call(2, run_notebook, SETUP, "for x, y in loader: x.data = torch.zeros(2, 3)", "0")

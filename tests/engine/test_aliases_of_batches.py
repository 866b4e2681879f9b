"""Views, samples and arrays of a batch have one memory, on all ranks: what is written to one of them is in the others."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.cell_results import CellResults
from tests.engine.ranks import Ranks, Run, double_precision, run_notebook, run_plain
from tests.engine.test_data_attribute import SETUP, assert_as_in_one_process

ALIASES = {
    "detach": "x.detach()",
    "data": "x.data",
    "all": "x[:]",
    "column": "x[:, 1]",
    "columns": "x[:, 1:]",
    "view": "x.view(len(x), 3, 1)",
    "unsqueeze": "x.unsqueeze(1)",
    "t": "x.t()",
    "t twice": "x.t().t()",
    "data's column": "x.data[:, 0]",
    "detached columns": "x[:, :2].detach()",
    "flat": "x.view(-1)",
    "flatten": "x.flatten()",
    "chunk": "x.chunk(3, 1)[1]",
    "split": "x.split(2, 1)[0]",
    "unbind": "x.unbind(1)[2]",
    "view_as": "x.t().view_as(x.t())",
    "same type": "x.double()",
    "rows": "x[1:4]",
}
TAKEN = {
    "sample": "s = x[0]; read(s)",
    "array": "s = x.numpy(); seen.append(s.tolist())",
    "sample's array": "s = x[1].numpy(); seen.append(s.tolist())",
    "alias's sample": "s = v[0]; read(s)",
    "alias's array": "s = v.detach().numpy(); seen.append(s.tolist())",
}
WRITES = {
    "batch": "x.mul_(2)",
    "batch's column": "x[:, 1] = 5",
    "alias": "v.mul_(2)",
    "alias's first": "v[0] = 7",
    "taken": "s *= 2",
    "all taken": "s[...] = 3",
}
MORE = {
    "two aliases of outputs": """
for x, y in loader:
    o = model(x); e, f = o.detach(), o.detach(); a = e.numpy(); f.add_(1); read(o, e, f); seen.append(a.tolist()); a[0] = 5; read(f, o)
""",
    "outputs in training": """
for x, y in loader:
    o = model(x); a = o.detach().numpy(); a *= 2; read(o)
    loss = F.mse_loss(o, y); opt.zero_grad(); loss.backward(); opt.step(); read(loss)
""",
    "gradients": """
for x, y in loader:
    x.requires_grad_(); loss = F.mse_loss(model(x), y); opt.zero_grad(); loss.backward()
    g = x.grad[:, 0]; read(g); x.grad.data.mul_(3); read(g, x.grad); d = x.detach(); d.add_(x.grad); read(x); opt.step()
""",
    "another shape": """
for x, y in loader:
    a = x.numpy(); c = x[:, :2]; x.unsqueeze_(1); a[0] = 3; read(x, c); x.squeeze_(1); x.t_(); x.add_(1); read(x, c); x.t_()
    seen.append(a.tolist()); step(x, y)
""",
    "data set to a view": """
for x, y in loader:
    z = x * 2; c = z[:, :2]; w = x[:, :2].clone(); w.data = c; z.add_(1); read(w, c); n = w.numpy(); n *= 0; read(z); step(z, y)
""",
    "in lists": """
for x, y in loader:
    a = x.numpy(); a *= 2; z = torch.cat([x, x * 1]); a *= 2; w = torch.stack((x, x)); read(z, w); step(x, y)
""",
    "many batches": """
batches = [x for x, y in loader for _ in range(4)]; arrays = [b.numpy() for b in batches]
for i, b in enumerate(batches): b.add_(i)
for a in arrays: a *= 2
read(*batches); seen += [a.tolist() for a in arrays]
""",
    "kept for later": """
for i, (x, y) in enumerate(loader):
    kept.append(x[:, 1]); a = x.numpy(); a += i
    for k in kept: k.mul_(1.1)
    read(*kept, x); seen.append(a.tolist()); step(x, y)
""",
    "copies of what is transposed": """
for x, y in DataLoader(TensorDataset(X, Y), batch_size=2):
    c, r, f, n = x.t().contiguous(), x.t().reshape(-1), x.t().flatten(), x.t().contiguous().view(-1)
    for v in (c, r, f, n): v.add_(1)
    read(x, c, r, f, n); x.mul_(2); read(x, c, r, f, n)
""",
    "means and sums": """
for x, y in loader:
    m, t = x.mean(0), x.sum(0); a, b = m.numpy(), t.numpy(); a *= 2; b -= 1; read(m, t); step(x - m + t, y)
    a[0] = 1; s = m[1]; s.mul_(3); step(x - m, y); read(m); m.add_(1); seen.append(a.tolist()); kept.append(t)
""",
    "in a try": """
for x, y in loader:
    try:
        c, a = x[:, 1], x.numpy(); a *= 2; read(c); c.add_(1); seen.append(a.tolist()); r = x[:, :2]; r.zero_(); read(x, c)
    except ValueError:
        pass
    seen.append(a.tolist()); step(x, y)
""",
    "out": """
for x, y in loader:
    b = torch.empty_like(x); n = b.numpy(); torch.mul(x, 2, out=b); seen.append(n.tolist())
    n += 1; torch.add(b, 1, out=x); read(x); step(x, y)
""",
    "tensors of arrays": """
for x, y in loader:
    p = torch.from_numpy(x.numpy()); p.mul_(2); read(x); x.add_(1); read(p); step(x, y); p[0] = 0; step(p, y)
""",
}


def _cells():
    for (alias, made), (taken, take), (written, write) in itertools.product(ALIASES.items(), TAKEN.items(), WRITES.items()):
        is_long = (taken, written) not in (
            ("array", "alias"),
            ("sample", "batch"),
            ("alias's array", "taken"),
            ("sample's array", "alias's first"),
        )
        ends = "read(v, x); seen.append(s.tolist()); step(x, y)"
        orders = {"then": f"v = {made}; {take}", "before": f"{take}; v = {made}"}
        if taken.startswith("alias"):
            del orders["before"]
        for order, begin in orders.items():
            cell = f"for x, y in loader: {begin}; {write}; {ends}; {write}; read(x); {ends}"
            marks = [pytest.mark.long] if is_long or order == "before" else []
            yield pytest.param(cell, id=f"{alias} {order} {taken}, {written}", marks=marks)
    yield from (pytest.param(cell, id=name) for name, cell in MORE.items())


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("cell", list(_cells()))
def test_what_is_written_to_one_is_in_the_others(ranks, cell):
    assert_as_in_one_process(ranks, cell, world_sizes=(2,))


# What is made of a batch, and what is kept under two names.
KEPT = {
    "a gradient": ("model(z).sum().backward(); g = z.grad", "g is z.grad, g"),
    "two of them": ("model(z).sum().backward(); held = [z.grad, {'g': z.grad}]", "held[0] is z.grad, held[1]['g'] is z.grad, z.grad"),
    "retained": ("h = z * 2; h.retain_grad(); model(h).sum().backward(); g = h.grad", "g is h.grad, g, z.grad"),
    "with a graph": ("model(z).pow(2).sum().backward(create_graph=True); g = z.grad", "g is z.grad, g.requires_grad, g.detach()"),
    "and a column": ("model(z).sum().backward(); g = z.grad; v = g[:, 0]; v += 1", "g is z.grad, v.data_ptr() == g.data_ptr(), v, g"),
    "in an object": (
        "model(z).sum().backward(); net = nn.Module(); net.z, net.g = z, z.grad; h = (z, z.grad)",
        "net.z is z, net.g is z.grad, h[1] is z.grad",
    ),
    "set": ("z.grad = g = x * 2", "g is z.grad, g"),
    "of a plain one": ("p = nn.Parameter(torch.ones(2, 3)); p.grad = g = x[:2] * 2", "g is p.grad, g"),
    "of the model": ("w = model[0].weight; w.grad = g = x.new_ones(5, 3) * x.sum()", "g is w.grad, model[0].weight.grad is g, g"),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_gradient_beside_its_tensor_stays_one(ranks, name):
    lines, compare = KEPT[name]
    cell = f"for x, y in loader: z = x.clone().requires_grad_(); {lines}"
    (expected,) = ranks.call(1, run_plain, SETUP, cell, f"({compare},)")
    for found in ranks.call(2, run_notebook, SETUP, cell, f"({compare},)"):
        for one, other in zip(found["compared"], expected["compared"], strict=True):
            assert torch.allclose(one, other) if isinstance(other, torch.Tensor) else one is other is True


@double_precision()
def saved_and_loaded(run: Run, cell: str, compare: str) -> Any:
    """Return what a process that goes on from the rank's snapshot after `cell` has of it."""
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(SETUP, "setup", namespace)
    results, training = CellResults(namespace, []), run.training(namespace["model"])
    with training.installed():
        run_cell(cell, "cell", namespace)
        names = {name: value for name, value in namespace.items() if name not in "zgh"}
        saved = results.save([], gather=training.wholes, skip=names)
    assert saved is not None
    later: dict[str, Any] = {"__name__": "__main__"}
    CellResults(later, []).load(saved.packed, device_for=torch.device)
    return eval(compare, later)


def test_a_gradient_goes_on_with_its_tensor(ranks):
    """A run that resumes in the middle of a loop has the gradients of the batch that was last, as it has the batch."""
    cell = "for x, y in loader: z = x.clone().requires_grad_(); h = z * 2; h.retain_grad(); model(h).pow(2).sum().backward(); g = z.grad"
    compare = "[g is z.grad, z.requires_grad, h.requires_grad, *g.flatten().tolist(), *h.grad.flatten().tolist()]"
    (expected,) = ranks.call(1, run_plain, SETUP, cell, compare)
    for found in ranks.call(2, saved_and_loaded, cell, compare):
        assert found == pytest.approx(expected["compared"])

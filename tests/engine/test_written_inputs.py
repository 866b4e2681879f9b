"""A model that writes into what it is given has done so once, however often it was called to learn from it."""

from __future__ import annotations

import pytest

from tests.engine.ranks import Ranks
from tests.engine.test_data_attribute import assert_as_in_one_process

MODEL = """
class Net(nn.Module):
    def __init__(self): super().__init__(); self.linear = nn.Linear(3, 1); self.calls = 0
    def forward(self, x{more}):
        {body}
net = Net(); opt.add_param_group({{'params': list(net.parameters())}})
def train(o, y, *more):
    loss = F.mse_loss(o, y) + sum(m.pow(2).mean() for m in more)
    opt.zero_grad(); loss.backward(); opt.step(); seen.append(loss.item())
"""
BODIES = {
    "scales": "x.mul_(1.5); return self.linear(x)",
    "centres each sample": "x -= x.mean(1, keepdim=True); return self.linear(x)",
    "centres the batch": "x -= x.mean(0); return self.linear(x)",
    "writes a column": "x[:, 0] = 0.5 * x[:, 1]; return self.linear(x)",
    "writes later": "self.calls += 1\n        if self.calls > 2: x.mul_(3)\n        return self.linear(x)",
    "by its data": "x.data.mul_(2); return self.linear(x)",
    "by an array": "a = x.numpy(); a *= 2; return self.linear(x)",
    "by a view": "x.view(-1).add_(1); return self.linear(x)",
    "by a layer": "return self.linear(F.hardtanh(x, 0.1, 0.6, inplace=True))",
    "returns it": "x.mul_(2); return self.linear(x) + x.sum(1, keepdim=True)",
}
LOOPS = {
    "one column, a sample at a time": """
for x, y in DataLoader(TensorDataset(X, Y), batch_size=3):
    v = x[:, 1].unsqueeze(1).expand(-1, 3); c = x[:, 1]; n = net(v.clone()); train(n, y); read(c); c.mul_(2); read(x)
""",
    "trained": "for x, y in loader: train(net(x), y); read(x)",
    "read before": "for x, y in loader: c = x[:, 1]; read(c, x); train(net(x), y); read(c, x)",
    "lent": "for x, y in loader: a, s = x.numpy(), x[1]; train(net(x), y); seen.append(a.tolist()); read(s, x); a += 1; step(x, y)",
    "evaluated": """
for x, y in loader:
    with torch.no_grad(): read(net(x))
    read(x); step(x, y)
""",
    "evaluated in inference mode": """
with torch.inference_mode():
    for x, y in loader: z = x * 1; o = net(z); read(o, z)
for x, y in loader: train(net(x), y); read(x)
""",
    "called twice": "for x, y in loader: o = net(x.clone()); train(net(x), y, o.detach()); read(x, o)",
}
OTHERS = {
    "what the cell has made for the batch": (
        "",
        "x.mul_(1.5); return self.linear(x)",
        "for x, y in loader: z = torch.ones(len(x), 3); o = net(z); train(o, y); read(z)",
    ),
    "what is for all samples": (
        ", n",
        "n.add_(0.1); return self.linear(x + n)",
        "noise = torch.rand(3)\nfor x, y in loader: train(net(x, noise), y); read(noise)",
    ),
    "in an object": (
        "",
        "x.x.mul_(3); return self.linear(x.x)",
        "from types import SimpleNamespace\nfor x, y in loader: b = SimpleNamespace(x=x); train(net(b), y); read(x, b.x)",
    ),
    "in a dict": (
        "",
        "x['x'].mul_(3); return {'o': self.linear(x['x']), 'x': x['x']}",
        "for x, y in loader: r = net({'x': x}); train(r['o'], y); read(x, r['x'])",
    ),
    "with a graph": (
        "",
        "return self.linear(F.leaky_relu_(x, 0.1))",
        (
            "first = nn.Linear(3, 3); opt.add_param_group({'params': list(first.parameters())})\n"
            "for x, y in loader: h = first(x); train(net(h), y, h); read(h)"
        ),
    ),
}


def _cells():
    for body, loop in ((body, loop) for body in BODIES for loop in LOOPS):
        is_long = loop not in ("trained", "lent") and body not in ("scales", "by its data")
        cell = MODEL.format(more="", body=BODIES[body]) + LOOPS[loop]
        yield pytest.param(cell, id=f"{body}, {loop}", marks=[pytest.mark.long] if is_long else [])
    for name, (more, body, loop) in OTHERS.items():
        yield pytest.param(MODEL.format(more=more, body=body) + loop, id=name)


@pytest.fixture(scope="module")
def ranks():
    with Ranks(3) as ranks:
        yield ranks


@pytest.mark.parametrize("cell", list(_cells()))
def test_what_a_model_writes_into_its_input_is_there_once(ranks, cell):
    assert_as_in_one_process(ranks, cell, world_sizes=(3,), state="seen, list(model.parameters()), list(net.parameters())")


BEFORE_BACKWARD = {
    "an array": ("a = x.numpy()", "a *= 2"),
    "a column of one": ("a = np.asarray(x)", "a[:, 1] = 0"),
    "the array of a sample": ("v = x[1]", "v.numpy()[:] = 0"),
    "arrays of samples": ("a = [s.numpy() for s in x]", "a[0][:] = 1; a[-1] *= 3"),
    "the array of a view": ("a = x[:, 1:].numpy()", "a += 1"),
    "its data": ("d = x.data", "d.mul_(2)"),
    "the array of its data": ("a = x.data.numpy()", "a.clip(0, 1, out=a)"),
    "targets": ("t = y.numpy()", "t *= 2"),
    "a sample": ("v = x[1]", "v.mul_(2)"),
}
"""What the cell takes of a batch before the model's call, and what it writes there after it: PyTorch counts the last alone."""
PASSES = {
    "backward": "loss.backward()",
    "autograd": "torch.autograd.backward(loss)",
    "grad": "for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))): p.grad = g",
}
WRITTEN = """
import numpy as np
for x, y in loader:
    {taken}
    loss = F.mse_loss(model(x), y)
    {written}
    opt.zero_grad()
    try:
        {derived}
    except RuntimeError as error:
        seen.append("modified by an inplace operation" in str(error))
    seen.append([None if p.grad is None else p.grad.tolist() for p in model.parameters()])
    opt.step()
"""


@pytest.mark.parametrize("name", BEFORE_BACKWARD)
@pytest.mark.parametrize("derived", PASSES.values(), ids=PASSES)
def test_a_pass_goes_by_what_was_written_to_the_batch_since(ranks, name, derived):
    taken, written = BEFORE_BACKWARD[name]
    assert_as_in_one_process(ranks, WRITTEN.format(taken=taken, written=written, derived=derived), world_sizes=(2,), state="seen")

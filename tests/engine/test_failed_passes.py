"""Errors in backward passes that the cell catches, of strategies that divide models: gradients are those of one process whose pass fails.

Parameters that it had come to have new ones, all others those from before, in whatever order they are reduced.
"""

from __future__ import annotations

import pytest

from tests.engine.everyday_cells import HEAD
from tests.engine.test_divided_models import check, marked

FAILING = """
class Fail(torch.autograd.Function):
    passes = 0
    @staticmethod
    def forward(ctx, x): return x.view_as(x)
    @staticmethod
    def backward(ctx, g):
        Fail.passes += 1
        if Fail.passes % 3 == 0: raise ValueError("failed")
        return g
passes = 0
def hook(gradient):
    global passes
    passes += 1
    if passes % 3 == 0: raise ValueError("failed")
def hooked(h):
    h.register_hook(hook)
    return h
"""
NET = (
    HEAD
    + FAILING
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = dict(body=nn.Linear(8, 16), mid=nn.Linear(16, 12), out=nn.Linear(12, 5))
        for name in ORDER: setattr(self, name, layers[name])
    def forward(self, x): return self.out(torch.tanh(self.mid(WHAT(torch.tanh(self.body(x))))))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
)
AROUND = (
    HEAD
    + FAILING
    + """
before, after = nn.Linear(8, 8), nn.Linear(5, 5)
inner = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 5))
model = nn.ModuleList([before, inner, after])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
)
CELL = """
for step, (x, y) in enumerate([*loader] * 3):
    ZERO
    loss = F.cross_entropy(CALL, y)
    try:
        loss.backward()
    except ValueError as error:
        losses.append(str(error))
    losses.append([None if p.grad is None else p.grad.sum().item() for p in model.parameters()])
    optimizer.step()
    losses.append(loss.item())
"""
STATE = "losses, [p.detach().clone() for p in model.parameters()], [p.grad for p in model.parameters()], optimizer.state_dict()"
CALLED_IN_THE_CELL = "model.out(torch.tanh(model.mid(Fail.apply(torch.tanh(model.body(x))))))"
SET = "for p in model.parameters(): p.grad = torch.full_like(p, 0.01) if step % 2 else None"


def cell(call: str = "model(x)", zero: str = "if step % 4: optimizer.zero_grad()") -> str:
    return CELL.replace("CALL", call).replace("ZERO", zero)


def net(*order: str, what: str = "Fail.apply") -> str:
    return NET.replace("ORDER", str(order)).replace("WHAT", what)


CELLS = {
    "in order": (net("body", "mid", "out"), cell()),
    "in another order": (net("out", "mid", "body"), cell()),
    "in mixed order": (net("mid", "out", "body"), cell()),
    "hooks": (net("out", "mid", "body", what="hooked"), cell()),
    "layers called by the cell": (net("out", "mid", "body", what=""), cell(CALLED_IN_THE_CELL)),
    "gradients that the cell has set": (net("out", "mid", "body"), cell(zero=SET)),
    "before a model": (AROUND, cell("after(inner(Fail.apply(before(x))))")),
    "after a model": (AROUND, cell("after(Fail.apply(inner(before(x))))")),
    "a hook before a model": (AROUND, cell("after(inner(hooked(before(x))))")),
}
WAYS = ["zero3 2", "zero3 3", "pipeline 2", "tensor 2", "zero3 2x2", "pipeline 2x2", "tensor 2x2"]
EACH_TIME = [("in another order", "zero3 2"), ("before a model", "pipeline 2"), ("in order", "tensor 2x2")]


@pytest.mark.parametrize(("name", "strategy"), marked([(name, strategy) for name in CELLS for strategy in WAYS], EACH_TIME))
def test_a_pass_that_fails(ranks, name, strategy):
    assert check(ranks, strategy, *CELLS[name], STATE)

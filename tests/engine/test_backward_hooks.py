"""Hooks that look at gradients on their way, or change them, see those of the global batch, whatever the number of ranks."""
# ruff: noqa: E501  # a table of cells

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import pytest

from tests.conftest import in_turn
from tests.engine.ranks import run_notebook, run_plain
from tests.notebook.corpus_cells import apart

BASE = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.data import DataLoader, TensorDataset

x_all, y_all = torch.randn(11, 3), torch.randn(11, 2)
loader = DataLoader(TensorDataset(x_all, y_all), batch_size=4)  # 4, 4 and 3: the last does not divide, nor does 4 by 3
tiny = DataLoader(TensorDataset(x_all, y_all), batch_size=1)  # all ranks but one have no sample
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen, kept = [], []

def step(loss, model=model):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen.append([p.grad.clone() for p in model.parameters()])

class Attended(nn.Module):
    def __init__(self, hook):
        super().__init__()
        self.first, self.last, self.hook = nn.Linear(3, 4), nn.Linear(4, 2), hook

    def forward(self, x):
        h = torch.tanh(self.first(x))
        if h.requires_grad:
            h.register_hook(self.hook)
        return self.last(h)
"""

LOOP = """
for x, y in loader:
    step(F.mse_loss(model(x), y))
"""


@dataclass
class Case:
    """What stands before the cell, and the cell."""

    setup: str
    cell: str


CASES = {
    "of a module, that records": Case(
        "model[2].register_full_backward_hook(lambda m, gi, go: seen.append((go[0].norm().item(), gi[0].abs().max().item(), tuple(go[0].shape))))",
        LOOP,
    ),
    "of a module, that keeps what it sees": Case(
        "def keep(module, grad_input, grad_output):\n    kept.append(grad_output[0])\n    module.slope = grad_input[0].detach().cpu()",
        "model[2].register_full_backward_hook(keep)\n" + LOOP + "\nseen += [*kept, model[2].slope]",
    ),
    "of the model, whose inputs need no gradient": Case(
        "import warnings; warnings.filterwarnings('ignore', 'Full backward hook')",
        "model.register_full_backward_hook(lambda m, gi, go: seen.append((gi[0], go[0].pow(2).sum().item())))\n" + LOOP,
    ),
    "of a module, that changes the gradient of its input": Case(
        "model[1].register_full_backward_hook(lambda m, gi, go: (gi[0].clamp(-0.02, 0.02),))", LOOP
    ),
    "of a module, that changes it by a value over the batch": Case(
        "model[1].register_full_backward_hook(lambda m, gi, go: (gi[0] / (1 + go[0].norm()) + gi[0].mean(),))", LOOP
    ),
    "of a module, before it": Case("model[2].register_full_backward_pre_hook(lambda m, go: (go[0] - go[0].mean(0),))", LOOP),
    "of a module, with a sample on one rank alone": Case(
        "loader = tiny\nmodel[2].register_full_backward_hook(lambda m, gi, go: (seen.append(go[0].norm().item()), (gi[0] + 0.1,))[1])", LOOP
    ),
    "of a sum over the batch": Case(
        "model[2].register_full_backward_hook(lambda m, gi, go: (seen.append(go[0].norm().item()), (gi[0].sign() * 0.1,))[1])",
        LOOP.replace("y)", "y, reduction='sum')", 1).replace("model(x), y)", "model(x), y, reduction='sum')"),
    ),
    "of a module that is given what all ranks have": Case(
        "table = nn.Linear(3, 2)\ntable.register_full_backward_hook(lambda m, gi, go: (seen.append(go[0].norm().item()), (gi[0] * 2,))[1])",
        "ones = torch.eye(3).requires_grad_()\nfor x, y in loader:\n    step(F.mse_loss(model(x) + x @ table(ones), y))\nseen += [table.weight.grad, ones.grad]",
    ),
    "of an output, in the cell": Case(
        "",
        """
        for x, y in loader:
            out = model(x)
            out.register_hook(lambda g: seen.append((g.norm().item(), len(g))))
            out.register_hook(lambda g: g.clamp(-0.1, 0.1))
            loss = F.mse_loss(out, y)
            loss.register_hook(lambda g: seen.append(g.item()))
            loss.register_hook(lambda g: g * 3)
            step(loss)
        """,
    ),
    "of an output, removed": Case(
        "",
        "for x, y in loader:\n    out = model(x)\n    handle = out.register_hook(lambda g: g * 0)\n    handle.remove()\n    step(F.mse_loss(out, y))",
    ),
    "of the batch itself": Case(
        "",
        "for x, y in loader:\n    x.requires_grad_()\n    x.register_hook(lambda g: seen.append(g.abs().sum().item()))\n    x.register_hook(lambda g: g * 2)\n    step(F.mse_loss(model(x), y))\n    seen.append(x.grad.sum().item())",
    ),
    "after the batch has its gradient": Case(
        "",
        "for x, y in loader:\n    x.requires_grad_()\n    x.register_post_accumulate_grad_hook(lambda x: seen.append(x.grad.norm().item()))\n    step(F.mse_loss(model(x), y))",
    ),
    "of what was made of a parameter": Case(
        "",
        "for x, y in loader:\n    w = model[0].weight * 2\n    w.register_hook(lambda g: seen.append(g.norm().item()))\n    w.register_hook(lambda g: g.clamp(-0.05, 0.05))\n    step(F.mse_loss(model(x), y) + F.linear(x, w).pow(2).mean())",
    ),
    "inside a model, that records": Case(
        "model = Attended(lambda g: seen.append(g.norm().item()))\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        LOOP.replace("y))", "y), model)"),
    ),
    "inside a model, that changes it": Case(
        "model = Attended(lambda g: g / g.norm())\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        LOOP.replace("y))", "y), model)"),
    ),
    "of autograd.grad": Case(
        "model[1].register_full_backward_hook(lambda m, gi, go: (seen.append(go[0].norm().item()), (gi[0].clamp(-0.1, 0.1),))[1])",
        """
        for x, y in loader:
            x.requires_grad_()
            out = model(x)
            out.register_hook(lambda g: g.clamp(max=0.7) * 2)
            slope, = torch.autograd.grad(out.pow(2).mean(), x)
            seen.append(slope.abs().sum().item())
            step(F.mse_loss(model(x), y))
        """,
    ),
    "of parameters, for autograd.grad": Case(
        "for p in model.parameters():\n    p.register_hook(lambda g: seen.append((g.norm().item(), tuple(g.shape))))\n    p.register_hook(lambda g: g.clamp(-0.02, 0.02))",
        """
        for x, y in loader:
            each = F.mse_loss(model(x), y, reduction="none")
            seen += torch.autograd.grad(each.mean(), model[2].weight, retain_graph=True)
            seen += torch.autograd.grad(each[1:].sum(), [model[0].bias, *model.parameters()])
        """,
    ),
    "of parameters, for gradients with a graph": Case(
        "for p in model.parameters():\n    p.register_hook(lambda g: (seen.append(g.norm().item()), g * g.abs())[1])",
        """
        for x, y in loader:
            x.requires_grad_()
            slopes = torch.autograd.grad(F.mse_loss(model(x), y), [x, *model.parameters()], create_graph=True)
            step(sum(slope.pow(2).sum() for slope in slopes))
            seen += [slope.detach().norm().item() for slope in slopes]
        """,
    ),
    "of any of several leaves, for autograd.grad": Case(
        "shift = torch.zeros(2, requires_grad=True)\nleaves = [shift, *model.parameters()]\n"
        "register_multi_grad_hook(leaves, lambda grad: seen.append(grad.norm().item()), mode='any')",
        """
        for x, y in loader:
            seen += torch.autograd.grad(F.mse_loss(model(x) + shift, y), leaves)
        """,
    ),
    "kept gradients of outputs and losses": Case(
        "",
        "for x, y in loader:\n    out = model(x)\n    out.retain_grad()\n    loss = F.mse_loss(out, y)\n    loss.retain_grad()\n    step(2 * loss)\n    seen.append((out.grad.norm().item(), loss.grad.item()))",
    ),
    "kept gradients of what was made of parameters": Case(
        "table = nn.Parameter(torch.randn(2, 3))",
        """
        twice = table * 2
        twice.retain_grad()
        for number, (x, y) in enumerate(loader):
            w = torch.tanh(table)
            w.retain_grad()
            loss = F.mse_loss(model(x) + x @ (w + twice).T, y)
            (slope,) = torch.autograd.grad(loss, table, retain_graph=True)
            seen.append((w.grad.norm().item(), twice.grad.clone(), slope.sum().item()))
            loss.backward(retain_graph=True)
            seen.append((w.grad.clone(), twice.grad.abs().max().item(), w.retains_grad))
            twice.grad = None if number else twice.grad * 0.5
        seen.append(table.grad)
        """,
    ),
    # -- leaves ------------------------------------------------------------------------------------------------------
    "of parameters, in their order": Case(
        "names = []\nfor name, p in model.named_parameters():\n    p.register_hook(lambda g, name=name: names.append((name, g.norm().item())))",
        LOOP + "\nseen += names",
    ),
    "of parameters, that clamp": Case("for p in model.parameters():\n    p.register_hook(lambda g: torch.clamp(g, -0.05, 0.05))", LOOP),
    "of parameters whose gradients are accumulated": Case(
        "for p in model.parameters():\n    p.register_hook(lambda g: torch.clamp(g, -0.05, 0.05))",
        """
        for epoch in range(2):
            for x, y in loader:
                (F.mse_loss(model(x), y) / 3).backward()
                seen.append([p.grad.clone() for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    "of parameters whose gradients somebody keeps": Case(
        "for p in model.parameters():\n    p.register_hook(lambda g: torch.clamp(g, -0.05, 0.05))\n    p.register_post_accumulate_grad_hook(lambda p: None)",
        """
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            kept = [p.grad for p in model.parameters()]
            F.l1_loss(model(x), y).backward()
            seen.append([g.clone() for g in kept])
            seen.append([g is p.grad for g, p in zip(kept, model.parameters())])
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    "of a batch whose gradient somebody keeps": Case(
        "",
        """
        for x, y in loader:
            x.requires_grad_()
            x.register_hook(lambda g: seen.append(g.sum().item()))
            F.mse_loss(model(x), y).backward()
            kept = x.grad
            F.mse_loss(model(2 * x), y).backward()
            seen.append(kept.sum().item())
            step(F.mse_loss(model(x), y))
        """,
    ),
    "of several parameters together": Case(
        "register_multi_grad_hook(list(model.parameters()), lambda grads: seen.append(torch.stack([g.norm() for g in grads]).norm().item()))\n"
        "register_multi_grad_hook(list(model.parameters()), lambda g: seen.append(tuple(g.shape)), mode='any')",
        LOOP,
    ),
    "of several outputs together": Case(
        "",
        "for x, y in loader:\n    a = model[0](x)\n    b = model[2](torch.tanh(a))\n    register_multi_grad_hook([a, b], lambda grads: seen.append([g.norm().item() for g in grads]))\n    step(F.mse_loss(b, y))",
    ),
    "after a parameter has its gradient": Case(
        "optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}\n"
        "def at_once(p):\n    seen.append(p.grad.norm().item())\n    optimizers[p].step()\n    optimizers[p].zero_grad()\n"
        "for p in model.parameters():\n    p.register_post_accumulate_grad_hook(at_once)",
        "for epoch in range(2):\n    for x, y in loader:\n        F.mse_loss(model(x), y).backward()\nseen += [p.detach() for p in model.parameters()]",
    ),
    "that hooks change between backward passes": Case(
        "",
        """
        for number, (x, y) in enumerate(loader):
            if number == 1:
                handle = model[0].weight.register_hook(lambda g: g * 5)
            if number == 2:
                handle.remove()
            F.mse_loss(model(x), y).backward()
            seen.append(model[0].weight.grad.clone())
        """,
    ),
}


@pytest.mark.parametrize(("name", "world_size"), in_turn(CASES, [2, 3]))
def test_hooks_see_and_change_what_they_do_on_one_process(ranks, name, world_size):
    case = CASES[name]
    setup, cell = BASE + "\n" + case.setup, textwrap.dedent(case.cell)
    (plain,) = ranks.call(1, run_plain, setup, cell, "(seen, model.state_dict())")
    assert plain["compared"][0], "the cell has looked at something"
    for rank in ranks.call(world_size, run_notebook, setup, cell, "(seen, model.state_dict())"):
        assert apart(plain["compared"], rank["compared"]) is None
        assert not rank["notes"]

"""Cells of many shapes for ranks that step by themselves: each reads something into `seen`, which is to be the same on all ranks."""

# ruff: noqa: E501  # cells as they are

from __future__ import annotations

SETUP = """
import copy
import io
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
inputs = torch.randn(52, 6)
targets = torch.sin(inputs.sum(1, keepdim=True))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
held, truth = torch.randn(10, 6), torch.randn(10, 1)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
seen = []
"""
MODELS = {
    "adam": "optimizer = torch.optim.Adam(model.parameters(), lr=0.01)",
    "norm": "model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))\n"
    "optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)",
    "own loss": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    def forward(self, x, y):
        return F.mse_loss(self.body(x), y) + 1e-3 * self.body[0].weight.norm()
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
""",
    "branches": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(16, 1)
    def forward(self, x):
        return self.out(torch.tanh((self.first if x[0, 0] > 0 else self.second)(x)))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
""",
    "sparse": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(3, 6, sparse=True), nn.Linear(6, 1)
        self.size = nn.Parameter(torch.tensor(1), requires_grad=False)
    def forward(self, x):
        return self.out(self.table((x[:, 0] > 0).long()) + torch.tanh(x)) * self.size
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
F.mse_loss(model(held), truth).backward()
""",
    "tied": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(6, 6), nn.Linear(6, 6)
        self.out.weight = self.first.weight
    def forward(self, x):
        return self.out(torch.tanh(self.first(x))).sum(1, keepdim=True)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
""",
}
STEP = """        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
LOOP = f"""
for epoch in range(4):
    for x, y in loader:
{STEP}"""


def looped(more: str = "", *, before: str = "", after: str = "", step: str = STEP) -> str:
    """Return a loop with `more` after each step, and `before` and `after` it."""
    return f"{before}\nfor epoch in range(4):\n    for x, y in loader:\n{step}{''.join(f'        {line}' + chr(10) for line in more.splitlines())}{after}"


CLIPPED = STEP.replace(
    "        optimizer.step()", "        seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())\n        optimizer.step()"
)
CELLS = {
    "plain": LOOP,
    "losses": looped("seen.append(loss.item())"),
    "accuracy": looped("seen.append((model(x) > 0).float().mean().item())"),
    "scheduler": looped(
        "scheduler.step()\nseen.append(scheduler.get_last_lr()[0])",
        before="scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=56)",
    ),
    "plateau": looped(
        before="scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)",
        after="    scheduler.step(loss.item())\n    seen.append(optimizer.param_groups[0]['lr'])\n",
    ),
    "average": looped(
        "with torch.no_grad():\n    for kept, p in zip(average.parameters(), model.parameters()):\n        kept.lerp_(p, 0.1)",
        before="average = copy.deepcopy(model)",
        after="seen += [p.sum().item() for p in average.parameters()]",
    ),
    "averaged model": looped(
        "average.update_parameters(model)",
        before="average = torch.optim.swa_utils.AveragedModel(model)",
        after="seen += [p.sum().item() for p in average.parameters()]",
    ),
    "evaluation": looped(
        after="    model.eval()\n    with torch.no_grad():\n        seen.append(F.mse_loss(model(held), truth).item())\n    model.train()\n"
    ),
    "evaluation within": looped("with torch.no_grad():\n    seen.append(F.mse_loss(model(held), truth).item())"),
    "early stop": looped("if loss.item() < 0.4:\n    seen.append(epoch)\n    break"),
    "kept best": looped(
        "if loss.item() < best:\n    best, state = loss.item(), copy.deepcopy(model.state_dict())",
        before="best = 1e9",
        after="seen += [value.sum().item() for value in state.values()]\nmodel.load_state_dict(state)",
    ),
    "held state": looped("seen.append(state['0.weight'].sum().item())", before="state = model.state_dict()"),
    "held data": looped("seen.append(data.sum().item())", before="data = model[0].weight.data"),
    "held array": looped("seen.append(float(array.sum()))", before="array = model[0].weight.detach().numpy()"),
    "clipped": looped(step=CLIPPED),
    "clipped by value": looped(
        step=STEP.replace(
            "        optimizer.step()", "        nn.utils.clip_grad_value_(model.parameters(), 0.01)\n        optimizer.step()"
        )
    ),
    "printed": looped("if loss.item() < 0.5:\n    seen.append(str(model[0].bias))"),
    "gradients": looped("seen.append(model[0].weight.grad.norm().item())"),
    "gradient changed": looped(
        step=STEP.replace(
            "        optimizer.step()", "        for p in model.parameters():\n            p.grad.mul_(0.5)\n        optimizer.step()"
        )
    ),
    "penalty": looped(
        step=STEP.replace("F.mse_loss(model(x), y)", "F.mse_loss(model(x), y) + 0.01 * sum(p.square().sum() for p in model.parameters())")
    ),
    "penalty in between": looped(
        step=STEP.replace(
            "        optimizer.zero_grad()\n",
            "        loss = loss + 0.01 * sum(p.abs().sum() for p in model.parameters())\n        optimizer.zero_grad()\n",
        )
    ),
    "penalty alone": looped(
        step=STEP.replace(
            "        optimizer.step()",
            "        (0.01 * sum(p.square().sum() for p in model.parameters())).backward()\n        optimizer.step()",
        )
    ),
    "weights clamped": looped("with torch.no_grad():\n    for p in model.parameters():\n        p.clamp_(-0.3, 0.3)"),
    "data clamped": looped("for p in model.parameters():\n    p.data.clamp_(-0.3, 0.3)"),
    "by hand": looped(
        step="        loss = F.mse_loss(model(x), y)\n        model.zero_grad()\n        loss.backward()\n"
        "        with torch.no_grad():\n            for p in model.parameters():\n                p -= 0.1 * p.grad\n"
    ),
    "accumulation": """
for epoch in range(4):
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y) / 2
        loss.backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
    seen.append(loss.item())
""",
    "accumulation seen": """
for epoch in range(4):
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y) / 2
        loss.backward()
        seen.append(model[0].bias.grad.sum().item())
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
""",
    "zeros kept": looped(step=STEP.replace("zero_grad()", "zero_grad(set_to_none=False)")),
    "closure": looped(
        step="        def closure():\n            optimizer.zero_grad()\n            loss = F.mse_loss(model(x), y)\n            loss.backward()\n            return loss\n"
        "        seen.append(optimizer.step(closure).item())\n"
    ),
    "lbfgs": looped(
        before="optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, line_search_fn='strong_wolfe')",
        step="        def closure():\n            optimizer.zero_grad()\n            loss = F.mse_loss(model(x), y)\n            loss.backward()\n            return loss\n"
        "        seen.append(float(optimizer.step(closure)))\n",
    ),
    "own optimizer": looped(
        before="""
class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-0.1 if p.grad.norm() > 0.01 else -0.2)
optimizer = Own(model.parameters())
"""
    ),
    "own step": looped(
        before="""
class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
optimizer = Own(model.parameters(), lr=0.05)
seen.append(hasattr(Own.__new__(Own), "state"))
"""
    ),
    "two optimizers": looped(
        before="optimizer, second = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters())",
        step=STEP.replace(
            "        optimizer.step()",
            "        optimizer.step()\n        second.step()\n        second.zero_grad()\n        seen.append(loss.item())",
        ),
    ),
    "adversary": """
critic = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
maker = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
of_critic, of_maker = torch.optim.Adam(critic.parameters(), lr=0.01), torch.optim.Adam(maker.parameters(), lr=0.01)
for epoch in range(4):
    for i, (x, _) in enumerate(loader):
        made = maker(x[:, :3])
        loss = F.softplus(-critic(x)).mean() + F.softplus(critic(made.detach())).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        if i % 3 == 0:
            fooled = F.softplus(-critic(made)).mean()
            of_maker.zero_grad()
            fooled.backward()
            of_maker.step()
            seen.append(fooled.item())
with torch.no_grad():
    seen += [p.sum().item() for p in (*critic.parameters(), *maker.parameters())]
""",
    "adversary of noise": """
critic = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
maker = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
of_critic, of_maker = torch.optim.Adam(critic.parameters(), lr=0.01), torch.optim.Adam(maker.parameters(), lr=0.01)
for epoch in range(4):
    for x, _ in loader:
        made = maker(torch.randn(len(x), 3))
        loss = F.softplus(-critic(x)).mean() + F.softplus(critic(made.detach())).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        fooled = F.softplus(-critic(made)).mean()
        of_maker.zero_grad()
        fooled.backward()
        of_maker.step()
        seen.append((loss.item(), fooled.item()))
""",
    "evaluation in between": looped(
        step=STEP.replace(
            "        optimizer.zero_grad()\n",
            "        with torch.no_grad():\n            seen.append((model(x) > 0).float().mean().item())\n        optimizer.zero_grad()\n",
        )
    ),
    "noise": """
maker = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
optimizer = torch.optim.Adam([*maker.parameters(), *model.parameters()], lr=0.01)
for epoch in range(4):
    for x, y in loader:
        loss = F.mse_loss(model(maker(torch.randn(len(x), 3))), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
seen += [p.sum().item() for p in maker.parameters()]
""",
    "teacher": looped(
        "with torch.no_grad():\n    for t, p in zip(teacher.parameters(), model.parameters()):\n        t.mul_(0.9).add_(p, alpha=0.1)",
        before="teacher = copy.deepcopy(model).requires_grad_(False)",
        step=STEP.replace(
            "        optimizer.zero_grad()",
            "        with torch.no_grad():\n            wanted = teacher(x)\n        loss = loss + F.mse_loss(model(x), wanted)\n        optimizer.zero_grad()",
        ),
    ),
    "frozen": looped(before="model[0].requires_grad_(False)", after="seen.append(model[0].weight.sum().item())"),
    "thawed": looped("model[0].requires_grad_(True)", before="model[0].requires_grad_(False)"),
    "saved": looped(
        after="    file = io.BytesIO()\n    torch.save({'m': model.state_dict(), 'o': optimizer.state_dict()}, file)\n    seen.append(file.getvalue()[-2000:])\n"
    ),
    "saved whole": looped(after="    seen += [p.sum().item() for p in copy.deepcopy(model).parameters()]\n"),
    "optimizer read": looped("seen.append(sum(v.sum().item() for s in optimizer.state.values() for v in s.values() if v is not None))"),
    "optimizer copied": looped(
        after="    state = copy.deepcopy(optimizer.state_dict())\n    seen.append(str(state))\n    optimizer.load_state_dict(state)\n"
    ),
    "optimizer reset": looped(
        before="seen.append(str(optimizer.state_dict()['state']))\noptimizer.state['note'] = 3",
        after="    seen.append(optimizer.state_dict()['state']['note'])\n    optimizer.state = type(optimizer.state)(dict, note=epoch)\ndel optimizer.state['note']\n",
    ),
    "gradients with a graph": looped(
        step="        loss = F.mse_loss(model(x), y)\n        if len(seen) % 2: optimizer.zero_grad()\n        loss.backward()\n        F.l1_loss(model(x), y).backward(create_graph=True)\n"
        "        seen.append(sum(p.grad.square().sum() for p in model.parameters()).item())\n        optimizer.step()\n"
    ),
    "gradient of a norm": looped(
        step="        x = x.clone().requires_grad_(True)\n        out = model(x)\n        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)\n"
        "        loss = F.mse_loss(out, y) + 0.1 * g.square().mean()\n        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n        seen.append(loss.item())\n"
    ),
    "gradients asked for": looped(
        step="        grads = torch.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))\n        for p, g in zip(model.parameters(), grads):\n"
        "            p.grad = g\n        optimizer.step()\n        seen.append(grads[0].sum().item())\n"
    ),
    "functional": looped(
        step="        loss = F.mse_loss(F.linear(torch.tanh(model[0](x)), model[2].weight, model[2].bias), y)\n        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
        "        seen.append(loss.item())\n"
    ),
    "hook": looped(before="model[0].weight.register_hook(lambda g: seen.append(g.sum().item()) or g * 0.5)"),
    "new layer": looped(
        after="    model[2] = nn.Linear(16, 1)\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)\n    seen.append(loss.item())\n"
    ),
    "search": """
for lr in (0.1, 0.01, 0.001):
    torch.manual_seed(1)
    tried = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(tried.parameters(), lr=lr)
    for x, y in loader:
        loss = F.mse_loss(tried(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seen.append(loss.item())
""",
    "vector": looped(after="    seen.append(nn.utils.parameters_to_vector(model.parameters()).sum().item())\n"),
    "functional call": looped(
        step="        weights = {name: p * 1.0 for name, p in model.named_parameters()}\n        loss = F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)\n"
        "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n        seen.append(loss.item())\n"
    ),
    "autocast": looped(
        step=STEP.replace("F.mse_loss(model(x), y)", "F.mse_loss(model(x).double(), y)").replace(
            "        loss =", "        with torch.autocast('cpu', torch.bfloat16):\n            loss =", 1
        )
    ),
    "tensor": """
w = torch.zeros(6, 1, requires_grad=True)
optimizer = torch.optim.Adam([w], lr=0.1)
for epoch in range(4):
    for x, y in loader:
        loss = F.mse_loss(x @ w, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seen.append((loss.item(), w.sum().item()))
""",
    "passes that fail": """
passes = 0
def hook(gradient):
    global passes
    passes += 1
    if passes % 3 == 0: raise ValueError("failed")
for number, (x, y) in enumerate([*loader] * 3):
    if number % 4: optimizer.zero_grad()
    h = torch.tanh(model[0](x)); h.register_hook(hook)
    loss = F.mse_loss(model[2](h), y)
    try:
        loss.backward()
    except ValueError as error:
        seen.append([str(error), *(None if p.grad is None else p.grad.sum().item() for p in model.parameters())])
    optimizer.step()
""",
    "steps that fail": """
optimizer = torch.optim.SGD([{"params": part.parameters()} for part in model if isinstance(part, nn.Linear)], lr=0.05, momentum=0.9)
kept = model.state_dict()
class Bad(float):
    def __neg__(self): raise ValueError("bad")
for number, (x, y) in enumerate([*loader] * 3):
    optimizer.param_groups[1]["lr"] = Bad(0.05) if number % 5 == 3 else 0.05
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    try:
        optimizer.step()
    except ValueError as error:
        seen.append(str(error))
        if number % 2: seen.append([p.sum().item() for p in model.parameters()])
        else: seen.append([v.sum().item() for v in kept.values()])
""",
    "caught": looped(
        before="seen.append(0)",
        step="        try:\n"
        + "".join("    " + line + "\n" for line in STEP.splitlines())
        + "        except ValueError:\n            pass\n",
    ),
}
COMPARE = "([p.detach().clone() for p in model.parameters()], [b.clone() for b in model.buffers()], seen, loss.item() if 'loss' in globals() else None)"
COMPARE_KEPT = "([p.grad.to_dense() if p.grad is not None and p.grad.is_sparse else p.grad for p in model.parameters()], [v for s in optimizer.state.values() for v in s.values()] if 'optimizer' in globals() else None)"

"""Everyday training cells of many shapes, for strategies that divide models: each is tried with them all.

A cell is (setup, cell, what is to come out the same). Each model has layers enough for two stages, and rows enough for four ranks.
"""

from __future__ import annotations

HEAD = """
import copy, io, math
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
X, Y = torch.randn(44, 8), torch.randint(0, 5, (44,))
loader = DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True)
losses = []
"""
MLP = (
    HEAD
    + """
blocks = [nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 5)]
model = nn.Sequential(*blocks)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
"""
)
WORDS = (
    HEAD
    + """
X, Y = torch.randint(0, 20, (30, 6)), torch.randint(0, 20, (30, 6))
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.position = nn.Embedding(20, 16), nn.Parameter(torch.randn(6, 16) * 0.1)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, norm_first=True) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight
    def forward(self, ids):
        x = self.embedding(ids) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)
model = Words()
decayed = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([dict(params=decayed, weight_decay=0.1), dict(params=rest, weight_decay=0.0, lr=3e-3)], lr=1e-2)
"""
)
STATE = "losses, [p.detach().clone() for p in model.parameters()], [p.grad for p in model.parameters()], optimizer.state_dict()"

LOOP = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""


def in_step(before: str = "", after: str = "", *, first: str = "", last: str = "", zero: str = "optimizer.zero_grad()") -> str:
    """Return a loop with lines of one's own before it, before a step, after it, and at the end."""
    loop = LOOP.replace("optimizer.zero_grad()", zero).replace("optimizer.step()\n", f"{before or 'pass'}\n        optimizer.step()\n")
    return f"{first}\n{loop}        {after or 'pass'}\n{last}\n"


CELLS: dict[str, tuple[str, str, str]] = {
    "accumulation, clipping, warm-up": (
        MLP,
        """
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [3])
for epoch in range(3):
    for number, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / 2).backward()
        if number % 2 or number == len(loader) - 1:
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())
            optimizer.step(); scheduler.step(); optimizer.zero_grad()
            losses.append(scheduler.get_last_lr())
""",
        STATE,
    ),
    "clipping by value, plateau": (
        MLP,
        """
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
for epoch in range(4):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y); loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.02)
        optimizer.step()
        total += loss.item() * len(x)
    scheduler.step(total / len(X)); losses += [total, optimizer.param_groups[0]["lr"]]
""",
        STATE,
    ),
    "averages of weights": (
        MLP,
        in_step(
            after="for e, p in zip(ema.parameters(), model.parameters()): e.lerp_(p.detach(), 0.1)\n        swa.update_parameters(model)",
            first="ema = copy.deepcopy(model).requires_grad_(False); swa = torch.optim.swa_utils.AveragedModel(model)",
            last="ema.eval(); losses.append(F.cross_entropy(ema(X), Y).item()); losses.append(swa.eval()(X).sum().item())",
        ),
        STATE + ", ema.state_dict(), swa.state_dict()",
    ),
    "weight norm and spectral norm": (
        HEAD
        + """
P = nn.utils.parametrizations
normed = P.weight_norm(nn.Linear(8, 16)), P.spectral_norm(nn.Linear(16, 16)), P.orthogonal(nn.Linear(16, 16))
model = nn.Sequential(normed[0], nn.GELU(), normed[1], nn.GELU(), normed[2], nn.Linear(16, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
""",
        LOOP + "nn.utils.parametrize.remove_parametrizations(model[0], 'weight'); losses.append(model(X).sum().item())\n",
        STATE + ", dict(model.named_buffers())",
    ),
    "a parametrization of one's own": (
        MLP,
        """
class Symmetric(nn.Module):
    def forward(self, w): return w.triu() + w.triu(1).T
nn.utils.parametrize.register_parametrization(model[2], "weight", Symmetric())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
"""
        + LOOP
        + "losses.append((model[2].weight - model[2].weight.T).abs().max().item())\n",
        STATE,
    ),
    "backward passes of one's own that are not linear": (
        HEAD
        + """
class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return w.sign() * w.abs().mean()
    @staticmethod
    def backward(ctx, g): return g.clamp(-0.003, 0.003) * (ctx.saved_tensors[0].abs() <= 1)
class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): return g.clamp(-0.003, 0.003)
class Binary(nn.Linear):
    def forward(self, x): return F.linear(x, Sign.apply(self.weight), self.bias)
class Clipped(nn.Linear):
    def forward(self, x): return Clip.apply(super().forward(x))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), Binary(16, 16), nn.Tanh(), Clipped(16, 12), nn.Tanh(), nn.Linear(12, 5))
loader = DataLoader(TensorDataset(X, Y), batch_size=11, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
""",
        LOOP,
        STATE,
    ),
    "tied embeddings, groups of their own": (WORDS, in_step("nn.utils.clip_grad_norm_(model.parameters(), 1.0)"), STATE),
    "freezing between epochs": (
        MLP,
        """
for epoch in range(4):
    for p in model[:3].parameters(): p.requires_grad_(epoch % 2 == 1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y); loss.backward(); optimizer.step()
        losses.append([loss.item(), [p.grad is None for p in model.parameters()]])
    if epoch == 1: optimizer.add_param_group(dict(params=[nn.Parameter(torch.zeros(4))], lr=0.1))
""",
        STATE,
    ),
    "two optimizers, alternating": (
        HEAD
        + """
made = nn.Sequential(nn.Linear(3, 12), nn.LeakyReLU(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 8))
judge = nn.Sequential(nn.Linear(8, 12), nn.LeakyReLU(), nn.Dropout(0.3), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))
model = nn.ModuleList([made, judge])
optimizer, second = torch.optim.Adam(made.parameters(), lr=1e-2, betas=(0.5, 0.9)), torch.optim.RMSprop(judge.parameters(), lr=1e-3)
""",
        """
for epoch in range(2):
    for number, (x, _) in enumerate(loader):
        z = torch.randn(len(x), 3)
        second.zero_grad(set_to_none=False)
        d = F.softplus(judge(made(z).detach())).mean() + F.softplus(-judge(x)).mean()
        d.backward(); second.step(); losses.append(d.item())
        if number % 2 == 0:
            for p in judge.parameters(): p.requires_grad_(False)
            optimizer.zero_grad(); g = F.softplus(-judge(made(z))).mean(); g.backward(); optimizer.step(); losses.append(g.item())
            for p in judge.parameters(): p.requires_grad_(True)
""",
        STATE + ", second.state_dict()",
    ),
    "saved and loaded": (
        MLP,
        """
for epoch in range(3):
    if epoch:
        found = torch.load(kept, weights_only=True); kept.seek(0)
        model.load_state_dict(found["model"]); optimizer.load_state_dict(found["optimizer"])
"""
        + LOOP.replace("\n", "\n    ").replace("for epoch", "for _ in range(1):\n        pass\n    for again")
        + """
    kept = io.BytesIO(); torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict(), epoch=epoch), kept); kept.seek(0)
    losses.append(sum(v.double().sum().item() for v in model.state_dict().values()))
""",
        STATE,
    ),
    "optimizer state, read and written": (
        MLP,
        in_step(
            after="s = optimizer.state[model[2].weight]\n"
            "        losses.append([s['exp_avg'].norm().item(), s['exp_avg_sq'][3].tolist(), int(s['step'])])",
            last="optimizer.state[model[0].weight]['exp_avg'].zero_(); optimizer.state.pop(model[2].bias)\n" + LOOP,
        ),
        STATE,
    ),
    "LBFGS": (
        MLP.replace("nn.Dropout(0.2)", "nn.Identity()"),
        """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
for x, y in loader:
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + 1e-3 * sum(p.pow(2).sum() for p in model.parameters()); loss.backward()
        return loss
    losses.append(optimizer.step(closure).item())
""",
        "losses, [p.detach().clone() for p in model.parameters()]",
    ),
    "hooks of parameters": (
        MLP,
        in_step(
            first="seen = []\nfor p in model[2].parameters(): p.register_hook(lambda g: seen.append(g.norm().item()) or g * 0.5)\n"
            "model[5].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))"
        ),
        STATE + ", seen",
    ),
    "writes in inference mode": (
        MLP,
        in_step(
            after="with torch.inference_mode():\n"
            "            losses.append(model(X).sum().item()); model[0].weight.detach()[2] = 0.1; model[5].weight.data.clamp_(-0.2, 0.2)\n"
            "            for p in model.parameters(): p.mul_(0.99)\n"
            "            losses.append([model(X).sum().item(), model[2].weight.norm().item()])",
        ),
        STATE,
    ),
    "made and evaluated in inference mode": (
        MLP,
        """
model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)], nn.TransformerEncoderLayer(8, 2, 16), nn.Linear(8, 5))
with torch.inference_mode():
    for x, y in loader: losses.append((model.eval()(x[None])[0].argmax(1) == y).double().mean().item())
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
"""
        + in_step("with torch.inference_mode(): losses.append([p.grad.norm().item() for p in model.parameters()])").replace(
            "model(x)", "model(x[None])[0]"
        ),
        STATE,
    ),
    "early stopping": (
        MLP,
        """
best, since, state = math.inf, 0, None
for epoch in range(8):
    model.train()
    for x, y in loader:
        optimizer.zero_grad(); loss = F.cross_entropy(model(x), y); loss.backward(); optimizer.step()
    model.eval()
    with torch.inference_mode():
        value = sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in loader) / len(X)
    losses.append(value)
    if value < best - 0.05:
        best, since, state = value, 0, copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    elif (since := since + 1) >= 2:
        print(f"stopped at {epoch}: {best:.4f}"); break
model.load_state_dict(state[0]); optimizer.load_state_dict(state[1])
losses.append(F.cross_entropy(model(X), Y).item())
""",
        STATE,
    ),
    "gradients read and changed": (
        MLP,
        in_step(
            "for p in model.parameters(): p.grad.add_(torch.randn_like(p) * 1e-3); p.grad /= p.grad.norm() + 1e-6\n"
            "        model[0].weight.grad[2:4] = 0.0; model[7].bias.grad = model[7].bias.grad.clamp(-0.1, 0.1)\n"
            "        losses.append([p.grad.abs().mean().item() for p in model.parameters()])"
        ),
        STATE,
    ),
    "kept gradients that are added to": (
        MLP,
        in_step(
            "kept = kept or [p.grad for p in model.parameters()]; losses.append([g.norm().item() for g in kept])",
            "losses.append(kept[0][0].tolist())",
            first="kept = []",
            zero="optimizer.zero_grad(set_to_none=False)",
        ),
        STATE + ", kept",
    ),
    "gradients by names, kept over epochs": (
        MLP,
        in_step(
            "grads = {n: p.grad for n, p in model.named_parameters()}",
            last="model.zero_grad(set_to_none=False)\nfor x, y in loader:\n    F.cross_entropy(model(x), y).backward()\n"
            "    losses.append([g.sum().item() for g in grads.values()])\noptimizer.step()",
            zero="model.zero_grad(set_to_none=False)",
        ),
        STATE,
    ),
    "parameters() is a list": (
        HEAD
        + """
class Scratch(nn.Module):
    def __init__(self):
        super().__init__()
        self.W, self.b = torch.randn(8, 5, requires_grad=True), torch.zeros(5, requires_grad=True)
    def parameters(self): return [self.W, self.b]
    def forward(self, x): return x @ self.W + self.b
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), Listed(8, 5)
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks: x = x + block(x).tanh()
        return self.last(x)
class Listed(nn.Linear):
    def parameters(self, recurse=True): return list(super().parameters(recurse))
model, scratch = Net(), Scratch()
optimizer, second = torch.optim.Adam(model.parameters(), lr=1e-2), torch.optim.SGD(scratch.parameters(), lr=0.1)
""",
        in_step("second.zero_grad(); F.cross_entropy(scratch(x), y).backward(); second.step()"),
        STATE + ", scratch.parameters()",
    ),
    "nested batches": (
        HEAD
        + """
data = [(torch.randn(2 + i % 4, 8), i % 5) for i in range(30)]
def collate(b): return torch.nested.nested_tensor([x for x, _ in b]), torch.tensor([y for _, y in b])
loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate)
model = nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
        LOOP.replace("model(x)", "model(x).to_padded_tensor(0.0).sum(1)"),
        STATE,
    ),
    "jagged batches": (
        HEAD
        + """
data = [(torch.randn(2 + i % 4, 8), i % 5) for i in range(30)]
def collate(b): return torch.nested.nested_tensor([x for x, _ in b], layout=torch.jagged), torch.tensor([y for _, y in b])
loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate)
model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
        LOOP.replace("model(x)", "model(x).to_padded_tensor(0.0).sum(1)"),
        STATE,
    ),
    "autocast": (
        MLP,
        LOOP.replace("F.cross_entropy(model(x), y.flatten())", "train(x, y)").replace(
            "\nfor epoch",
            "\ndef train(x, y):\n    with torch.autocast('cpu', torch.bfloat16): return F.cross_entropy(model(x).double(), y)\nfor epoch",
            1,
        ),
        STATE,
    ),
    "compiled": (MLP.replace("optimizer", "model = torch.compile(model, backend='eager')\noptimizer", 1), LOOP, STATE),
    "weights of float32 beside those of the model": (
        MLP.replace("optimizer", "master = [p.detach().float().requires_grad_() for p in model.parameters()]\noptimizer", 1).replace(
            "AdamW(model.parameters()", "SGD(master", 1
        ),
        in_step(
            "for number, (m, p) in enumerate(zip(master, model.parameters())):\n"
            "            if number % 2: m.grad = p.grad.float() * 0.5\n"
            "            else: m._grad = p._grad.detach().to(m.dtype)\n"
            "        losses.append(nn.utils.clip_grad_norm_(master, 0.5).item())",
            "with torch.no_grad():\n            for m, p in zip(master, model.parameters()): p.copy_(m)",
            zero="model.zero_grad()",
        ),
        STATE + ", [m.detach() for m in master], [m.grad for m in master]",
    ),
    "gradients of inputs": (
        MLP,
        in_step(
            "losses.append((x.grad.norm().item(), (x.grad * x).sum(1).max().item()))", zero="optimizer.zero_grad(); x.requires_grad_()"
        ),
        STATE,
    ),
    "gradients of another model": (
        MLP + "shared = copy.deepcopy(model)\noptimizer = torch.optim.Adam(shared.parameters(), lr=1e-2, eps=1e-4)\n",
        in_step(
            "for p, q in zip(model.parameters(), shared.parameters()): q._grad = p.grad\n"
            "        losses.append([q.grad is not None and q._grad.norm().item() for q in shared.parameters()])",
            "model.load_state_dict(shared.state_dict())",
            zero="model.zero_grad()",
        ),
        STATE + ", shared.state_dict(), [q.grad for q in shared.parameters()]",
    ),
    "a GradScaler that skips steps": (
        MLP,
        """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
for epoch in range(3):
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y) * (math.inf if (epoch, number) == (0, 2) else 1.0)).backward()
        if (epoch, number) == (1, 1): model[2].weight.grad[15, 3] = math.nan
        if (epoch, number) == (1, 3): model[7].bias.grad[0] = -math.inf
        if number % 2: losses.append(model[5].weight.grad[1].tolist())
        if epoch < 2:
            scaler.unscale_(optimizer)
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())
        scaler.step(optimizer); scaler.update(); losses.append(scaler.get_scale())
""",
        STATE + ", scaler.state_dict()",
    ),
    "a copy evaluated in half precision": (
        MLP,
        LOOP + "half = copy.deepcopy(model).eval().bfloat16(); losses.append(half(X.bfloat16()).argmax(1).tolist())\n" + LOOP,
        STATE + ", half.state_dict()",
    ),
    "hooks that keep the very tensors": (
        MLP
        + """
from torch.autograd.graph import saved_tensors_hooks
kept = []
def pack(t):
    if any(t is p for p in model.parameters()):
        kept.append((isinstance(t, nn.Parameter), t.shape, t.sum().item()))
        return [t]
    return t
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        self.last.requires_grad_(False)
    def inner(self, x):
        with saved_tensors_hooks(pack, lambda t: t[0] if isinstance(t, list) else t):
            return self.last(self.norm(self.first(x)).tanh())
    def forward(self, x):
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            return x + self.inner(x)
model = nn.Sequential(Block(), Block(), *blocks)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
""",
        LOOP,
        STATE + ", kept",
    ),
    "frozen parts in checkpoints": (
        MLP
        + """
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        self.conv, self.norm.bias = nn.Conv1d(4, 4, 3, padding=1), None
        nn.init.xavier_uniform_(self.first.weight)
        for part in (self.norm, self.conv): part.requires_grad_(False)
    def inner(self, x):
        h = self.norm(self.first(x)).tanh()
        return self.last(self.conv(h.view(-1, 4, 4)).flatten(1))
    def forward(self, x):
        return x + checkpoint(self.inner, x, use_reentrant=False)
model = nn.Sequential(Block(), Block(), *blocks)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
""",
        LOOP,
        STATE,
    ),
    "what has no gradient": (
        MLP
        + """
class Rounded(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x.round())
    backward = staticmethod(lambda ctx, grad: None)
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.learns, (self.rows, self.mean) = model, (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5)) for _ in range(2))
    def forward(self, x):
        return self.learns(x) + Rounded.apply(self.rows(x)) + Rounded.apply(self.mean(x).mean(0)) + self.mean(x).norm(0)
model = Both()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
""",
        LOOP,
        STATE,
    ),
    "Rprop that writes to gradients": (
        MLP,
        in_step(
            "g = model[5].weight.grad; losses.append(g.norm().item())",
            "losses.append([g.norm().item(), g.abs().sum().item()])",
            first="optimizer = torch.optim.Rprop(model.parameters(), lr=1e-2, foreach=True)",
        ),
        STATE,
    ),
}

SET_BEFORE_STEPS = {
    "all of them, held": "old = [p.data.clone() for p in model.parameters()]\n        for p, o in zip(model.parameters(), old): p.data = o",
    "one": "o = model[2].weight.data.clone(); model[2].weight.data = o",
    "one, in the last step": "o = model[2].weight.data * 0.9\n        if len(losses) == 9: model[2].weight.data = o",
    "weights, by names": "kept = {n: p.data * 0.99 for n, p in model.named_parameters() if n.endswith('weight')}\n"
    "        for n, p in model.named_parameters(): p.data = kept.get(n, p.data)",
    "an array": "a = model[2].weight.detach().numpy().copy(); model[2].weight.data = torch.from_numpy(a)",
    "a half, later": "o = [p.data.clone() for p in model[:3].parameters()]\n"
    "        for p, q in zip(model[:3].parameters(), o): p.data = q if len(losses) == 3 else p.data",
    "nobody holds it": "for p in model.parameters(): p.data = p.data * 0.999",
    "swapped with averages": "average = globals().get('average') or [p.data.clone() for p in model.parameters()]\n"
    "        for i, p in enumerate(model.parameters()): p.data, average[i] = average[i], p.data",
    "views of one vector": "flat = torch.cat([p.data.view(-1) for p in model.parameters()])\n"
    "        nn.utils.vector_to_parameters(flat, model.parameters())",
}
"""Lines that set the `data` of parameters between a backward pass and a step: to what the cell holds, it stays whole."""
OPTIMIZERS = ("SGD(model.parameters(), lr=0.1)", "SGD(model.parameters(), lr=0.1, momentum=0.9)", "Adam(model.parameters(), lr=1e-2)")

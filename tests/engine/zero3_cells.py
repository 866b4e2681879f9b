"""Cells that sharded parameters are tried with: what people do with parameters, gradients and optimizers, on models of three kinds."""

# ruff: noqa: E501  # cells as they are

from __future__ import annotations

HEAD = """
import copy, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
"""

MLP = (
    HEAD
    + """
X, Y = torch.randn(48, 32), torch.randint(0, 10, (48,))
loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, W), nn.GELU(), nn.Linear(W, W), nn.GELU(), nn.Linear(W, W), nn.GELU(), nn.Linear(W, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
"""
)

TRANSFORMER = (
    HEAD
    + """
class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h; self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3*d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4*d), nn.Linear(4*d, d)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, d//self.h).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))
class LM(nn.Module):
    def __init__(self, v, d, n, t):
        super().__init__()
        self.tok, self.pos = nn.Embedding(v, d), nn.Parameter(torch.randn(t, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(n))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, v, bias=False)
        self.head.weight = self.tok.weight
    def forward(self, ids):
        x = self.tok(ids) + self.pos[:ids.size(1)]
        for b in self.blocks: x = b(x)
        return self.head(self.norm(x))
ids = torch.randint(0, V, (48, T+1))
X, Y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
loader = DataLoader(TensorDataset(X, Y), batch_size=B, shuffle=True)
model = LM(V, D, N, T)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
"""
)

CNN = (
    HEAD
    + """
class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.b1, self.b2 = nn.BatchNorm2d(c), nn.BatchNorm2d(c)
    def forward(self, x): return F.relu(x + self.b2(self.c2(F.relu(self.b1(self.c1(x))))))
X, Y = torch.randn(48, 3, 12, 12), torch.randint(0, 10, (48,))
loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, C, 3, padding=1), nn.Sequential(*(Res(C) for _ in range(3))), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(C, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
losses = []
"""
)

SEQ2SEQ = (
    HEAD
    + """
class Seq2Seq(nn.Module):
    def __init__(self, v, d):
        super().__init__()
        self.source, self.target = nn.Embedding(v, d), nn.Embedding(v, d)
        self.transformer = nn.Transformer(d, 4, 2, 2, 2*d, dropout=0.1, batch_first=True)
        self.head = nn.Linear(d, v)
    def forward(self, ids):
        source, target = ids.chunk(2, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        return self.head(self.transformer(self.source(source), self.target(target), tgt_mask=mask, tgt_is_causal=True))
X = torch.randint(0, V, (48, 2*T))
Y = X[:, T:].roll(-1, 1).contiguous()
loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
model = Seq2Seq(V, D)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
"""
)

LSTM = (
    HEAD
    + """
class Tagger(nn.Module):
    def __init__(self, v, d):
        super().__init__()
        self.tok = nn.Embedding(v, d)
        self.rnn = nn.LSTM(d, d, 2, batch_first=True, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(2*d, v)
    def forward(self, ids):
        out, (h, c) = self.rnn(self.tok(ids))
        return self.head(out + h[-1].repeat(1, 2)[:, None])
X = torch.randint(0, V, (48, T))
Y = X.roll(1, 1).contiguous()
loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
model = Tagger(V, D)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
losses = []
"""
)

LOOP = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""

STATE = (
    "losses, [p.detach().clone() for p in model.parameters()],"
    " [[v for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)] for p in model.parameters()], list(model.buffers())"
)

MODELS = {
    "MLP": "W = 24\n" + MLP,
    "transformer": "V, D, N, T, B = 40, 16, 3, 6, 16\n" + TRANSFORMER,
    "CNN": "C = 8\n" + CNN,
    "encoder-decoder": "V, D, T = 30, 16, 5\n" + SEQ2SEQ,
    "LSTM": "V, D, T = 20, 12, 6\n" + LSTM,
}

IDIOMS = {
    "plain": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "clip_grad_norm_": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))); optimizer.step()
        losses.append(loss.item())
""",
    "clip_grad_value_": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01); optimizer.step()
        losses.append(loss.item())
""",
    "print norms": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append(sum(p.norm().item() for p in model.parameters())); losses.append(sum(p.grad.norm().item()**2 for p in model.parameters() if p.grad is not None)**0.5); optimizer.step()
        losses.append(loss.item())
""",
    "grad mean/absmax": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses += [p.grad.abs().max().item() for p in model.parameters()] + [p.grad.mean().item() for p in model.parameters()]; optimizer.step()
        losses.append(loss.item())
""",
    "deepcopy(state_dict)": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    best = copy.deepcopy(model.state_dict())
losses.append([v.double().sum().item() for v in best.values()])
""",
    "state_dict alias kept": """
sd = model.state_dict()

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
losses.append([v.double().sum().item() for v in sd.values()])
""",
    "load_state_dict mid": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    sd = copy.deepcopy(model.state_dict())
    if epoch == 0: model.load_state_dict({k: v*0.9 if v.is_floating_point() else v for k, v in sd.items()})
""",
    "EMA zip": """
ema = copy.deepcopy(model)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters()): e.mul_(0.9).add_(p, alpha=0.1)
losses.append([p.double().sum().item() for p in ema.parameters()])
""",
    "EMA data lerp": """
shadow = {n: p.data.clone() for n, p in model.named_parameters()}

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        for n, p in model.named_parameters(): shadow[n].lerp_(p.data, 0.1)
losses.append([p.double().sum().item() for p in shadow.values()])
""",
    "freeze mid": """
for epoch in range(2):
    [p.requires_grad_(epoch > 0) for p in list(model.parameters())[:3]]
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "add_param_group": """
mine = [*model.parameters()]
optimizer = torch.optim.AdamW(mine[:2], lr=1e-3)

for epoch in range(2):
    if epoch == 1: optimizer.add_param_group({'params': mine[2:], 'lr': 1e-4})
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "L2 in loss": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss = loss + 1e-3 * sum(p.pow(2).sum() for p in model.parameters()); loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "accumulate": """
for epoch in range(2):
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        (len(losses) % 2) and (optimizer.step(), optimizer.zero_grad())
        losses.append(loss.item())
""",
    "grad *= in place": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        [p.grad.mul_(0.5) for p in model.parameters()]; optimizer.step()
        losses.append(loss.item())
""",
    "p.grad = new": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): p.grad = p.grad * 0.5
        optimizer.step()
        losses.append(loss.item())
""",
    "hand sgd": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        with torch.no_grad():
            for p in model.parameters(): p -= 0.01 * p.grad
        optimizer.step()
        losses.append(loss.item())
""",
    "p.data.clamp_": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        for p in model.parameters(): p.data.clamp_(-0.2, 0.2)
""",
    "LBFGS all": """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
def closure():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(X).flatten(0, -2), Y.flatten())
    loss.backward()
    return loss
for i in range(3): losses.append(optimizer.step(closure).item())
""",
    "grad penalty": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        g = torch.autograd.grad(loss, list(model.parameters())[-1], create_graph=True)[0]; loss = loss + 0.1 * g.pow(2).sum(); loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "hooks on params": """
handles = [p.register_hook(lambda g: g.clamp(-0.01, 0.01)) for p in model.parameters()]

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
[h.remove() for h in handles]
""",
    "swa AveragedModel": """
from torch.optim.swa_utils import AveragedModel
avg = AveragedModel(model)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    avg.update_parameters(model)
losses.append([p.double().sum().item() for p in avg.parameters()])
""",
    "F.linear with weight": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        w = [p for p in model.parameters() if p.dim() == 2][-1]; loss = loss + 0.01 * F.linear(torch.ones(1, w.shape[1]), w).pow(2).mean(); loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "param to vector": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
losses.append(nn.utils.parameters_to_vector(model.parameters()).sum().item())
""",
    "optimizer.state_dict": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    osd = copy.deepcopy(optimizer.state_dict())
losses.append([v.double().sum().item() for st in osd['state'].values() for v in st.values() if isinstance(v, torch.Tensor)])
""",
    "scheduler+groups": """
sched = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    sched.step()
""",
    "eval between": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad(): losses.append(F.cross_entropy(model(X).flatten(0, -2), Y.flatten()).item())
    model.train()
""",
    "type and repr": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
losses.append([type(p).__name__ for p in model.parameters()][0]); losses.append(isinstance(next(model.parameters()), nn.Parameter)); s = repr(next(model.parameters()))
losses.append(len(s))
""",
    "weight init in cell": """
for m in model.modules():
    if isinstance(m, nn.Linear): nn.init.xavier_uniform_(m.weight); nn.init.zeros_(m.bias) if m.bias is not None else None

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "LBFGS": """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
x, y = X, Y
def closure():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
    loss.backward()
    return loss
for x, y in loader: losses.append(optimizer.step(closure).item())
""",
}

MORE = {
    "g cat": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append(torch.cat([p.grad.view(-1) for p in model.parameters()]).norm().item()); optimizer.step()
        losses.append(loss.item())
""",
    "g cat flatten": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append(torch.cat([p.grad.flatten() for p in model.parameters()])[3:50].tolist()); optimizer.step()
        losses.append(loss.item())
""",
    "g first": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([p.grad.flatten()[0].item() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g numpy": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([float(p.grad.numpy().sum()) for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g tolist": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([p.grad.reshape(-1)[:5].tolist() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g stack": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()); optimizer.step()
        losses.append(loss.item())
""",
    "g sum0": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([p.grad.sum(0).abs().sum().item() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g sum1": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([p.grad.sum(-1).abs().sum().item() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g T": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([p.grad.T.contiguous()[0].sum().item() for p in model.parameters() if p.dim() == 2]); optimizer.step()
        losses.append(loss.item())
""",
    "g row": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([p.grad[0].sum().item() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g lastrow": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([p.grad[-1].sum().item() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g dot p": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([(p.grad * p).sum().item() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g dot p r": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([(p * p.grad).sum().item() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g mm": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([(p.grad @ p.grad.T).trace().item() for p in model.parameters() if p.dim() == 2]); optimizer.step()
        losses.append(loss.item())
""",
    "g std": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([p.grad.std().item() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g sign": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): p.grad = p.grad.sign() * 0.01
        optimizer.step()
        losses.append(loss.item())
""",
    "g wd": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): p.grad.add_(p, alpha=0.1)
        optimizer.step()
        losses.append(loss.item())
""",
    "g wd data": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): p.grad.data.add_(p.data, alpha=0.1)
        optimizer.step()
        losses.append(loss.item())
""",
    "p addgrad": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        with torch.no_grad():
            for p in model.parameters(): p.add_(p.grad, alpha=-0.01)
        optimizer.step()
        losses.append(loss.item())
""",
    "pdata -= grad.data": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): p.data -= 0.01 * p.grad.data
        optimizer.step()
        losses.append(loss.item())
""",
    "pdata copy": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): p.data.copy_(p.data - 0.01 * p.grad)
        optimizer.step()
        losses.append(loss.item())
""",
    "pdata =": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): p.data = p.data - 0.01 * p.grad
        optimizer.step()
        losses.append(loss.item())
""",
    "p foreach": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        torch._foreach_add_([p.data for p in model.parameters()], [p.grad for p in model.parameters()], alpha=-0.01)
        optimizer.step()
        losses.append(loss.item())
""",
    "g foreach norm": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([n.item() for n in torch._foreach_norm([p.grad for p in model.parameters()])]); optimizer.step()
        losses.append(loss.item())
""",
    "g kept clone": """
gs = []

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        gs.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
        losses.append(loss.item())
losses.append([g.sum().item() for l in gs for g in l])
""",
    "g kept": """
gs = []

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        gs.append([p.grad for p in model.parameters()])
        optimizer.step()
        losses.append(loss.item())
losses.append([g.sum().item() for l in gs for g in l])
""",
    "g avg": """
avg = [torch.zeros_like(p) for p in model.parameters()]

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for a, p in zip(avg, model.parameters()): a.mul_(0.9).add_(p.grad)
        optimizer.step()
        losses.append(loss.item())
losses.append([a.sum().item() for a in avg])
""",
    "g sq list": """
sq = {p: torch.zeros_like(p) for p in model.parameters()}

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): sq[p] += p.grad ** 2
        optimizer.step()
        losses.append(loss.item())
losses.append([a.sum().item() for a in sq.values()])
""",
    "g zeros mask": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): p.grad[p.grad.abs() < 1e-3] = 0
        optimizer.step()
        losses.append(loss.item())
""",
    "g topk": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([p.grad.abs().flatten().topk(3)[0].sum().item() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g quantile": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([p.grad.abs().quantile(0.5).item() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g hist": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append([torch.histc(p.grad, 4, -0.01, 0.01).tolist() for p in model.parameters()]); optimizer.step()
        losses.append(loss.item())
""",
    "g noise": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): p.grad += 0.01 * torch.randn_like(p.grad)
        optimizer.step()
        losses.append(loss.item())
""",
    "g noise p": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): p.grad += 0.01 * torch.randn_like(p)
        optimizer.step()
        losses.append(loss.item())
""",
    "g noise shape": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        for p in model.parameters(): p.grad += 0.01 * torch.randn(p.shape)
        optimizer.step()
        losses.append(loss.item())
""",
    "p noise": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        with torch.no_grad():
            for p in model.parameters(): p.add_(torch.randn_like(p), alpha=1e-3)
        optimizer.step()
        losses.append(loss.item())
""",
    "g vec": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        losses.append(nn.utils.parameters_to_vector([p.grad for p in model.parameters()]).norm().item()); optimizer.step()
        losses.append(loss.item())
""",
    "vec to params": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        v = nn.utils.parameters_to_vector(model.parameters()); nn.utils.vector_to_parameters(v * 0.99, model.parameters())
        optimizer.step()
        losses.append(loss.item())
""",
    "total norm hand": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        tot = torch.sqrt(sum(p.grad.detach().pow(2).sum() for p in model.parameters()))
        c = min(1.0, 0.5 / (tot.item() + 1e-6))
        for p in model.parameters(): p.grad.mul_(c)
        optimizer.step()
        losses.append(loss.item())
""",
    "norm inf": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        losses.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=float('inf'))))
        optimizer.step()
        losses.append(loss.item())
""",
    "get_total_norm": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        losses.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters()])))
        optimizer.step()
        losses.append(loss.item())
""",
    "zero_ grads": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "model.zero_grad": """
for epoch in range(2):
    for x, y in loader:
        model.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "closure": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())

        def closure():
            optimizer.zero_grad(); l = F.cross_entropy(model(x).flatten(0, -2), y.flatten()); l.backward(); return l
        optimizer.step(closure)
        losses.append(loss.item())
""",
    "step hooks": """
h = optimizer.register_step_pre_hook(lambda o, a, k: losses.append(sum(p.norm().item() + p.grad.norm().item() for g in o.param_groups for p in g['params'])))

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
h.remove()
""",
    "post hook": """
h = optimizer.register_step_post_hook(lambda o, a, k: losses.append(sum(p.norm().item() for g in o.param_groups for p in g['params'])))

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
h.remove()
""",
    "state read": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()

        losses.append([v.double().sum().item() for p in model.parameters() for v in optimizer.state.get(p, {}).values() if isinstance(v, torch.Tensor)])
        optimizer.step()
        losses.append(loss.item())
""",
    "opt save load": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    sd = copy.deepcopy(optimizer.state_dict()); optimizer = type(optimizer)(model.parameters(), lr=1e-3); optimizer.load_state_dict(sd)
""",
    "torch.save": """
import io

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    buf = io.BytesIO(); torch.save({'m': model.state_dict(), 'o': optimizer.state_dict()}, buf); buf.seek(0); sd = torch.load(buf)
    model.load_state_dict(sd['m']); optimizer.load_state_dict(sd['o'])
""",
    "best weights": """
best = None

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if epoch == 0: best = {k: v.clone() for k, v in model.state_dict().items()}
model.load_state_dict(best)
""",
    "best alias": """
best = None

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if epoch == 0: best = model.state_dict()
losses.append([v.double().sum().item() for v in best.values()])
model.load_state_dict(best)
""",
    "new model": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
m2 = copy.deepcopy(model); losses.append([p.sum().item() for p in m2.parameters()])
model = m2; optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "made in cell": """
import random
torch.manual_seed(3); model = copy.deepcopy(model)
for p in model.parameters(): nn.init.normal_(p, std=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "weight sharing later": """
w = list(model.parameters())[0]

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss = loss + w.abs().mean(); loss.backward()
        optimizer.step()
        losses.append(loss.item())
losses.append(w.sum().item()); losses.append(w[0].tolist())
""",
    "numpy read": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
losses.append([float(p.detach().numpy().sum()) for p in model.parameters()])
""",
    "p in comparison": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
losses.append([bool((p == p).all()) for p in model.parameters()]); losses.append(any(p.isnan().any().item() for p in model.parameters()))
""",
    "retain_graph": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward(retain_graph=True); loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "two losses": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        out2 = model(x * 1 if x.is_floating_point() else x); l2 = out2.pow(2).mean(); (loss + 0.1 * l2).backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "autograd.grad all": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        gs = torch.autograd.grad(loss, list(model.parameters()))
        for p, g in zip(model.parameters(), gs): p.grad = g
        optimizer.step()
        losses.append(loss.item())
""",
    "autograd.grad hand": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        gs = torch.autograd.grad(model(x).pow(2).mean(), list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gs): p -= 0.01 * g
        losses.append(loss.item())
""",
    "inputs=": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        ps = list(model.parameters()); loss.backward(inputs=ps[:3]); F.mse_loss(model(x), torch.zeros_like(out)).backward(inputs=ps[3:])
        optimizer.step()
        losses.append(loss.item())
""",
    "spectral": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
losses.append([torch.linalg.svdvals(p.detach().reshape(p.shape[0], -1))[0].item() for p in model.parameters()])
""",
    "prune": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
with torch.no_grad():
    for p in model.parameters(): p[p.abs() < 0.01] = 0
losses.append([int((p == 0).sum()) for p in model.parameters()])
""",
    "foreach false": """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, amsgrad=True)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "fused": """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "adafactor": """
optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "own optimizer": """
class Own(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01): super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self):
        n = sum(p.grad.pow(2).sum() for g in self.param_groups for p in g['params']).sqrt()
        for g in self.param_groups:
            for p in g['params']:
                s = self.state[p]
                s['m'] = s.get('m', torch.zeros_like(p)).mul_(0.9).add_(p.grad / n)
                p.add_(s['m'], alpha=-g['lr'])
optimizer = Own(model.parameters())

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "functional_call": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss = loss + 0.1 * torch.func.functional_call(model, {k: v * 0.9 for k, v in model.named_parameters()}, (x,)).pow(2).mean(); loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "func.grad": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
ps = {k: v.detach() for k, v in model.named_parameters()}
g = torch.func.grad(lambda q: torch.func.functional_call(model, q, (X,)).pow(2).mean())(ps)
losses.append([v.sum().item() for v in g.values()])
""",
    "func.grad params": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
model.eval(); g = torch.func.grad(lambda q: torch.func.functional_call(model, q, (X,)).pow(2).mean())(dict(model.named_parameters()))
losses.append([v.sum().item() for v in g.values()]); model.train()
""",
    "checkpoint": """
from torch.utils.checkpoint import checkpoint

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = checkpoint(model, x, use_reentrant=False)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "summary": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
losses.append(sum(p.numel() for p in model.parameters())); losses.append(sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad))
""",
    "half": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
m = copy.deepcopy(model).float(); losses.append([p.sum().item() for p in m.parameters()])
""",
    "double()": """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
model.double(); losses.append([str(p.dtype) for p in model.parameters()])
""",
    "freeze all but last": """
for p in list(model.parameters())[:-2]: p.requires_grad = False
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "apply init": """
def init(m):
    if isinstance(m, (nn.Linear, nn.Conv2d)): m.weight.data.normal_(0, 0.02); m.bias is not None and m.bias.data.zero_()
model.apply(init)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "replace layer": """
last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
with torch.no_grad(): last.weight.copy_(torch.randn_like(last.weight) * 0.02)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "own function": """
class Sq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w); return (w * w).sum()
    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors; return 2 * w * g

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss = loss + 1e-3 * Sq.apply(list(model.parameters())[0]); loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
}

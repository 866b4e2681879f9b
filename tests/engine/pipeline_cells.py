"""Cells that models cut into stages are tried with: what `zero3_cells` has none of."""

from __future__ import annotations

from tests.engine.zero3_cells import HEAD, LOOP

DATA = """
X, Y = torch.randn(48, 8), torch.randint(0, 5, (48,))
loader = DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True)
losses = []
"""

DROPOUT = (
    HEAD
    + DATA
    + """
blocks = [nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.3)) for _ in range(4)]
model = nn.Sequential(nn.Linear(8, 8), *blocks, nn.Dropout(0.1), nn.Linear(8, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
"""
)

ENCODER = (
    HEAD
    + """
X, Y = torch.randint(0, 30, (48, 6)), torch.randint(0, 5, (48,))
loader = DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True)
losses = []
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.position = nn.Embedding(30, 16), nn.Parameter(torch.randn(6, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.scale, self.head = nn.Parameter(torch.tensor(1.5)), nn.Linear(16, 5)
    def forward(self, ids):
        return self.head(self.scale * self.encoder(self.embedding(ids) + self.position).mean(1))
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
"""
)

SKIPS = (
    HEAD
    + DATA
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.blocks = nn.ModuleList(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)) for _ in range(3))
    def forward(self, x):
        first = x = self.first(x)
        for block in self.blocks:
            x = self.shared(block(x))
        return self.last(x + first.tanh())
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
"""
)

BIASED = (
    HEAD
    + DATA
    + """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.mean = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x, bias=None, seen=()):
{body}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(8, 8), nn.ModuleList(Block() for _ in range(4)), nn.Linear(8, 5)
    def forward(self, x):
        given = (self.first(x),)
        for block in self.blocks:
            given = block(*given)
        return self.last(given[0])
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
"""
)
BODIES = {
    "what the first has made": """
        bias = F.dropout(self.mean(x), 0.5, self.training) if bias is None else bias
        return F.dropout(x, 0.2, self.training) + torch.tanh(self.rows(x)) * bias, bias
""",
    "one tensor twice": """
        x = x + torch.tanh(self.rows(x))
        return x, x
""",
    "a growing tuple": """
        x = x + torch.tanh(self.rows(x))
        return x, None, (*seen, x)
""",
    "a view": """
        x = F.dropout(x, 0.2, self.training) + torch.tanh(self.rows(x))
        return x, x.view(-1, 2, 4)
""",
    "an object": """
        x = F.dropout(x, 0.2, self.training) + torch.tanh(self.rows(x)) + self.mean(x)
        return x, None, frozenset([1])
""",
    "what numbers of Python's choose": """
        if self.training and __import__("random").random() < 0.4:
            return x, bias
        return x + torch.tanh(self.rows(x)), self.mean(x)
""",
}
"""Bodies of blocks that return what they are given, or what cannot be sent."""

RECORDED = (
    HEAD
    + DATA
    + """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Linear(8, 8)
    def forward(self, x, kept, counts):
        x = x + torch.tanh(self.rows(x))
        {body}
        return x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(8, 8), nn.ModuleList(Block() for _ in range(4)), nn.Linear(8, 5)
    def forward(self, x):
        x, kept, counts = self.first(x), [], {{"calls": 0}}
        for block in self.blocks:
            x = block(x, kept, counts)
        return self.last(x + 0.1 * sum(kept)) * (1 + counts["calls"])
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
"""
)
RECORDS = ["kept.append(x)", "counts['calls'] += 1"]
"""What blocks write to lists and dicts that the model gives them."""

MODELS = {"dropout": DROPOUT, "encoder": ENCODER, "skips": SKIPS}

CELLS = {
    "accumulation, clipping and a scheduler": """
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
for epoch in range(3):
    optimizer.zero_grad()
    for number, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        if number % 2:
            losses.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
            optimizer.step(); scheduler.step(); optimizer.zero_grad()
        losses.append(loss.item())
""",
    "evaluation, its best state, metrics": """
best, state, history = 1e9, None, []
for epoch in range(4):
    model.train()
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        history.append((loss.item(), (out.argmax(1) == y).double().mean().item()))
    model.eval()
    with torch.no_grad():
        value = sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in loader)
        whole = F.cross_entropy(model(X), Y).item()
    losses += [value, whole, sum(p.norm().item() for p in model.parameters())]
    if value < best:
        best, state = value, copy.deepcopy(model.state_dict())
losses += history
model.load_state_dict(state)
model.train()
"""
    + LOOP,
    "frozen stages": """
some = [p for p in model.parameters()]
for p in some[: len(some) // 2]: p.requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
"""
    + LOOP
    + "for p in model.parameters(): p.requires_grad_(not p.requires_grad)\n"
    + "optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)\n"
    + LOOP
    + "losses.append([p.grad is None for p in model.parameters()])\n",
    "two losses, one graph kept": """
for epoch in range(2):
    for x, y in loader:
        out = model(x)
        optimizer.zero_grad()
        F.cross_entropy(out, y).backward(retain_graph=True)
        losses.append([float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None])
        out.pow(2).mean().backward()
        optimizer.step()
        losses.append(out.mean().item())
""",
    "two calls whose graphs meet, one that is dropped": """
for epoch in range(2):
    for x, y in loader:
        one, other, _ = model(x), model(x), model(x)
        one = F.normalize(one - one.mean(0)); other = F.normalize(other)
        loss = F.cross_entropy(one @ other.T, torch.arange(len(x)))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
""",
}

DROPPED = (
    LOOP
    + """
for x, y in [*loader][:1] * {times}:
    unused = model(x)
    optimizer.zero_grad(); F.cross_entropy(model(x), y).backward(); optimizer.step()
"""
)

GAN = (
    HEAD
    + """
X = torch.randn(48, 4)
loader = DataLoader(TensorDataset(X), batch_size=10, shuffle=True)
made = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
judge = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
first, second = torch.optim.Adam(made.parameters(), lr=1e-2), torch.optim.Adam(judge.parameters(), lr=1e-2)
losses = []
"""
)
GAN_CELL = """
for epoch in range(3):
    for (x,) in loader:
        z = torch.randn(len(x), 3)
        fake = made(z)
        loss = F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(x)).mean()
        second.zero_grad(); loss.backward(); second.step()
        wanted = F.softplus(-judge(fake)).mean()
        first.zero_grad(); wanted.backward(); first.step()
        losses.append([loss.item(), wanted.item()])
"""
GAN_STATE = "losses, [p.detach().clone() for m in (made, judge) for p in m.parameters()], [p.grad for p in judge.parameters()]"

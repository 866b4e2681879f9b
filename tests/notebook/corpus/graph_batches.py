# Graphs of different sizes in one batch: the collation shifts their edges, and nodes are pooled by the graph that they belong to.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

X = torch.randn(29, 6)
Y = (X.sum(1) > 0).long() + (X[:, 0] > 1).long()


class Graphs(Dataset):
    def __init__(self, n=27):
        g = torch.Generator().manual_seed(3)
        self.items = []
        for i in range(n):
            k = int(torch.randint(3, 7, (1,), generator=g))
            x = torch.randn(k, 4, generator=g)
            e = torch.randint(0, k, (2, 2 * k), generator=g)
            self.items.append((x, e, int(x.sum() > 0)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    xs, es, ys, b, off = [], [], [], [], 0
    for i, (x, e, y) in enumerate(batch):
        xs.append(x)
        es.append(e + off)
        ys.append(y)
        b += [i] * len(x)
        off += len(x)
    return torch.cat(xs), torch.cat(es, 1), torch.tensor(b), torch.tensor(ys)


class Conv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin, self.own = nn.Linear(i, o), nn.Linear(i, o)

    def forward(self, x, e):
        m = self.lin(x)[e[0]]
        agg = torch.zeros(x.size(0), m.size(1)).index_add_(0, e[1], m)
        deg = torch.bincount(e[1], minlength=x.size(0)).clamp(min=1).unsqueeze(1)
        return F.relu(self.own(x) + agg / deg)


class GNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = Conv(4, 8), Conv(8, 8), nn.Linear(8, 2)

    def forward(self, x, e, batch):
        h = self.b(self.a(x, e), e)
        n = int(batch.max()) + 1
        pooled = torch.zeros(n, h.size(1)).scatter_add_(0, batch[:, None].expand_as(h), h)
        pooled = pooled / torch.bincount(batch, minlength=n)[:, None]
        return self.out(pooled)


gnn = GNN()
opt = torch.optim.Adam(gnn.parameters(), lr=1e-2, weight_decay=5e-4)
loader = DataLoader(Graphs(), batch_size=6, shuffle=True, collate_fn=collate)
# %% cell
log = []
for epoch in range(3):
    correct = total = 0
    run = 0.0
    for x, e, b, y in loader:
        out = gnn(x, e, b)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        correct += int((out.argmax(-1) == y).sum())
        total += len(y)
        run += float(loss) * len(y)
    log.append((run / total, correct / total, total))
print(log[-1][2])
# %% compare
gnn.state_dict(), log

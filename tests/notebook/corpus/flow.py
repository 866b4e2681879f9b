# A normalizing flow: log-determinants added up sample by sample, a distribution over buffers, the density of new samples.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader

X = torch.randn(29, 6)
Y = (X.sum(1) > 0).long() + (X[:, 0] > 1).long()


class Coupling(nn.Module):
    def __init__(self, d, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(d // 2, 16), nn.ReLU(), nn.Linear(16, d))

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, dim=-1)
        s = torch.tanh(s)
        b = b * s.exp() + t
        if self.flip:
            a, b = b, a
        return torch.cat([a, b], 1), s.sum(-1)


class Flow(nn.Module):
    def __init__(self, d=6, k=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(d, i % 2) for i in range(k))
        self.register_buffer("mu", torch.zeros(d))
        self.register_buffer("cov", torch.eye(d))

    @property
    def base(self):
        return torch.distributions.MultivariateNormal(self.mu, self.cov)

    def forward(self, x):
        log_det = torch.zeros(x.shape[0], device=x.device)
        for l in self.layers:
            x, ld = l(x)
            log_det += ld
        return x, log_det

    def log_prob(self, x):
        z, ld = self(x)
        return self.base.log_prob(z) + ld


flow = Flow()
opt = torch.optim.Adam(flow.parameters(), lr=1e-2)
dl = DataLoader(X, batch_size=8, shuffle=True, drop_last=False)
# %% cell
nll = []
for ep in range(3):
    tot = 0
    for x in dl:
        lp = flow.log_prob(x + 0.01 * torch.randn_like(x))
        loss = -lp.mean()
        opt.zero_grad()
        loss.backward()
        gn = nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        opt.step()
        tot += -lp.sum().item()
    nll.append((tot / len(dl.dataset), gn.item()))
with torch.no_grad():
    s = flow.base.sample((5,))
    worst = flow.log_prob(X).topk(3, largest=False)
print(s.shape, worst.indices.tolist())
# %% compare
flow.state_dict(), nll, s, worst.values

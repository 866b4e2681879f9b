# Parameters that are set to statistics of a batch by `.data`: a normalizing flow whose first batch gives it its scales, prototypes by hand.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class ActNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.zeros(1, dim)), nn.Parameter(torch.zeros(1, dim))
        self.done = False
    def forward(self, x):
        if not self.done:
            with torch.no_grad():
                self.scale.data = -x.std(dim=0, keepdim=True).log()
                self.shift.data = -(x * self.scale.exp()).mean(dim=0, keepdim=True)
            self.done = True
        return x * self.scale.exp() + self.shift, self.scale.sum(1).expand(len(x))

class Coupling(nn.Module):
    def __init__(self, dim, flip):
        super().__init__()
        self.flip, self.net = flip, nn.Sequential(nn.Linear(dim // 2, 8), nn.Tanh(), nn.Linear(8, dim))
    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip: a, b = b, a
        log_scale, shift = self.net(a).chunk(2, dim=1)
        b = b * log_scale.tanh().exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], dim=1), log_scale.tanh().sum(1)

class Flow(nn.Module):
    def __init__(self, dim, num):
        super().__init__()
        self.steps = nn.ModuleList(layer for n in range(num) for layer in (ActNorm(dim), Coupling(dim, n % 2)))
        self.prior = torch.distributions.MultivariateNormal(torch.zeros(dim), torch.eye(dim))
    def forward(self, x):
        log_det, zs = torch.zeros(len(x)), [x]
        for step in self.steps:
            x, change = step(x)
            log_det += change
            zs.append(x)
        return zs, self.prior.log_prob(x), log_det

x = torch.randn(42, 4) * torch.tensor([0.5, 1.0, 2.0, 3.0]) + 1.0
loader = DataLoader(TensorDataset(x, (x[:, 0] > 1).long()), batch_size=16, shuffle=True)
flow = Flow(4, 2)
opt = torch.optim.Adam(flow.parameters(), lr=0.01)
prototypes = nn.Parameter(torch.zeros(2, 4))
centre = torch.zeros(4)
log = []
# %% cell
for epoch in range(2):
    for x, y in loader:
        zs, prior, log_det = flow(x)
        loss = -(prior + log_det).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        means = torch.stack([x[y == c].mean(0) for c in range(2)])
        prototypes.data = 0.9 * prototypes.data + 0.1 * means
        prototypes.grad = (prototypes.data - x.mean(0)).sum(0).expand(2, 4).clone()
        centre.data = x.mean(0)
        log.append((loss.item(), centre.tolist(), prototypes.tolist()))
last = torch.zeros(0)
last.data = x
print(loss.item(), zs[-1].mean().item(), last.shape)
# %% compare
flow.state_dict(), opt.state_dict(), log, prototypes, prototypes.grad, centre, last

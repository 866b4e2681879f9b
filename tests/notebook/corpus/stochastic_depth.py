# Layers that are skipped at random for a whole batch, or for each sample; which, PyTorch, Python and NumPy say. A latent with a Beta distribution.
# %% setup
import random
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.distributions import Beta
from torch.utils.data import DataLoader, TensorDataset

class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p
    def forward(self, x):
        if not self.training: return x
        kept = (1 - self.p + torch.rand((len(x),) + (1,) * (x.dim() - 1))).floor()
        return x / (1 - self.p) * kept

class Block(nn.Module):
    def __init__(self, dim, p, skips):
        super().__init__()
        self.p, self.skips, self.linear, self.drop = p, skips, nn.Linear(dim, dim), DropPath(p)
    def forward(self, x):
        if self.training and self.skips() < self.p: return x
        return x + self.drop(torch.relu(self.linear(x)))

class Latent(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.encode, self.decode = nn.Linear(dim, 4), nn.Linear(2, dim)
    def forward(self, x):
        a, b = F.softplus(self.encode(x)).add(0.2).chunk(2, dim=1)
        return self.decode(Beta(a, b).rsample())

def in_torch(): return torch.rand(1).item()
def in_python(): return random.random()
def in_numpy(): return np.random.rand()

x = torch.randn(42, 6)
loader = DataLoader(TensorDataset(x, x[:, :1].abs()), batch_size=16, shuffle=True)
nets = [nn.Sequential(*(Block(6, p, skips) for p in (0.2, 0.4, 0.6)), nn.Linear(6, 1)) for skips in (in_torch, in_python, in_numpy)]
often = nn.Sequential(Block(6, 0.85, in_torch), Block(6, 0.85, in_torch), nn.Linear(6, 1))
latent = Latent(6)
nets.append(often)
opt = torch.optim.SGD([p for net in [*nets, latent] for p in net.parameters()], lr=0.02)
log = []
# %% cell
for epoch in range(3):
    for x, y in loader:
        losses = [F.mse_loss(net(x), y) for net in nets]
        losses.append(F.mse_loss(latent(x), x))
        opt.zero_grad()
        sum(losses).backward()
        opt.step()
        log.append([loss.item() for loss in losses])
print(log[-1])
# %% compare
[net.state_dict() for net in [*nets, latent]], log

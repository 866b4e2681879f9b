# Counts over the batch where PyTorch takes plain numbers: how many samples are hard, a rank in a bank, a slope.
# %% setup
import math, copy, random
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset
g = torch.Generator().manual_seed(3)
X = torch.randn(75, 6, generator=g)
Y = (X[:, 0] + X[:, 1] ** 2 > 0.6).long() + (X[:, 2] > 1).long()
T = X @ torch.randn(6, 1, generator=g) + 0.1 * torch.randn(75, 1, generator=g)
loader = DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True)
reg = DataLoader(TensorDataset(X, T), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
# %% cell
losses = []
bank = torch.linspace(-1, 1, 20)
for x, y in loader:
    out = model(x)
    per = F.cross_entropy(out, y, reduction="none")
    k = (per.detach() > per.detach().mean()).sum()
    hard = per.topk(k).values.mean()
    th = bank.kthvalue(k).values
    win = bank.roll(k)[:3].sum()
    margin = F.softplus(bank, beta=k).mean() + F.leaky_relu(bank, 0.01 * k).mean()
    loss = hard + th.abs() * 0.1 + win * 0.0 + margin * 0
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append((loss.item(), th.item(), win.item(), margin.item()))
# %% compare
list(model.parameters()), losses

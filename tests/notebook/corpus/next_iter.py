# An endless loop by next(iter(loader)), a fixed batch to overfit, an iterator started again, zip of two loaders.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from itertools import cycle

X = torch.randn(26, 3)
labelled = DataLoader(TensorDataset(X[:10], X[:10].sum(1, keepdim=True)), batch_size=4, shuffle=True)
unlabelled = DataLoader(TensorDataset(X[10:]), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.Adam(model.parameters(), lr=0.02)
loss_fn = nn.MSELoss()
# %% cell
xb, yb = next(iter(labelled))
print(xb.shape, yb.shape, xb.dtype)
for _ in range(3):
    opt.zero_grad()
    loss = loss_fn(model(xb), yb)
    loss.backward()
    opt.step()
overfit = loss.item()
train_iter = iter(labelled)
steps = []
for step in range(5):
    try:
        x, y = next(train_iter)
    except StopIteration:
        train_iter = iter(labelled)
        x, y = next(train_iter)
    opt.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    opt.step()
    steps.append((len(x), loss.item()))
for (x, y), (u,) in zip(cycle(labelled), unlabelled):
    sup = loss_fn(model(x), y)
    unsup = (model(u + 0.1 * torch.randn(u.shape)) - model(u).detach()).pow(2).mean()
    opt.zero_grad()
    (sup + 0.3 * unsup).backward()
    opt.step()
    steps.append((len(x), len(u), sup.item(), unsup.item()))
print(overfit, steps[-1])
# %% compare
model.state_dict(), opt.state_dict(), overfit, steps, xb

# Arrays and tensors over the same memory: a data set's array and weights that are written to through NumPy, and what the cell makes so.
# %% setup
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = np.random.randn(45, 6)
T = X.sum(1, keepdims=True)
features, targets = torch.from_numpy(X), torch.from_numpy(T)
loader = DataLoader(TensorDataset(features, targets), batch_size=7, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
flat, at = np.zeros(sum(p.numel() for p in model.parameters())), 0
for p in model.parameters():
    flat[at:at + p.numel()] = p.detach().numpy().ravel()
    p.data = torch.from_numpy(flat[at:at + p.numel()]).view_as(p)
    at += p.numel()
table = np.arange(60.0).reshape(6, 10)
part = table[:, 1:9]
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
# %% cell
history = np.zeros((3, 7))
rows, firsts, last = list(history), history[:, 0], torch.from_numpy(history)[-1]
for epoch in range(3):
    for i, (x, t) in enumerate(loader):
        loss = F.mse_loss(model(x), t)
        optimizer.zero_grad()
        loss.backward()
        gradient = model[0].weight.grad.numpy()
        gradient *= 0.5
        optimizer.step()
        rows[epoch][i] = loss.item()
    X *= 1.1
    targets[::2] += 0.1
    flat *= 0.99
part.reshape(-1)[:] = 0
column = part[:, 0]
column += epoch
# %% compare
model.state_dict(), flat, X, features, T, targets, history, rows, firsts, last, table, column, np.shares_memory(column, table), np.shares_memory(firsts, history), np.shares_memory(gradient, model[0].weight.grad.numpy()), np.shares_memory(last.numpy(), history)

# Gradients that the cell keeps beyond the next pass (of one task beside another, as a history, as arrays), and whose data it sets.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(50, 3)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=16, shuffle=True)


def net():
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))


tasks, pruned, plain = net(), net(), net()
optimizer = torch.optim.SGD([*tasks.parameters(), *pruned.parameters(), *plain.parameters()], lr=0.1)
history, arrays, data = [], [], []
# %% cell
for x, y in loader:
    tasks.zero_grad()
    nn.functional.mse_loss(tasks(x), y).backward()
    first = [p.grad for p in tasks.parameters()]
    tasks.zero_grad()
    nn.functional.l1_loss(tasks(x), y).backward()
    for p, g in zip(tasks.parameters(), first):
        p.grad += g

    optimizer.zero_grad(set_to_none=False) if len(history) == 2 else pruned.zero_grad()
    nn.functional.mse_loss(pruned(x), y).backward()
    for p in pruned.parameters():
        p.grad.data = torch.where(p.data.abs() < 0.2, torch.zeros_like(p.grad), p.grad.data)

    plain.zero_grad()
    nn.functional.mse_loss(plain(x), y).backward()
    history.append(plain[0].weight.grad)
    arrays.append(plain[0].bias.grad.numpy())
    data.append({name: p.grad.data for name, p in plain.named_parameters()})
    optimizer.step()
# %% compare
[(m.state_dict(), [p.grad for p in m.parameters()]) for m in (tasks, pruned, plain)], history, arrays, data

# Variables that functions share, and arrays that look into the same memory: counters, a replay memory with its columns.
# %% setup
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def meter():
    total, count = 0.0, 0

    def add(value, n):
        nonlocal total, count
        total += value * n
        count += n

    return add, lambda: total / max(count, 1)


add, mean = meter()
memory = np.zeros((64, 4))
states, rewards = memory[:, :3], memory[:, 3]
recent = memory[-8:]
loader = DataLoader(TensorDataset(torch.randn(26, 3), torch.randn(26, 1)), batch_size=7, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
# %% cell
position, means = 0, []
for epoch in range(2):
    for x, y in loader:
        output = model(x)
        loss = F.mse_loss(output, y) * (1 + 0.1 * float(memory[:, 3].mean()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        add(loss.item(), len(x))
        states[position : position + len(x)] = x.numpy()
        rewards[position : position + len(x)] = output.detach()[:, 0].numpy()
        position += len(x)
    means.append(mean())
recent += 1
# %% compare
model.state_dict(), means, mean(), memory, states, rewards, recent, np.shares_memory(memory, states), np.shares_memory(memory, recent)

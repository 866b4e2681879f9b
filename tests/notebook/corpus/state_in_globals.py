# Models that keep state of their samples outside of themselves: in names of the notebook, a class, a function, an argument's default.
# %% setup
import types
from collections import Counter
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

notes, activations, counts, signs = [], [], {"n": 0}, Counter()
total, histogram, meter, seen = torch.zeros(()), np.zeros(4), types.SimpleNamespace(n=0), 0


def note(x):
    note.n += len(x)


note.n = 0


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x, log=[]):
        out = self.linear(x)
        notes.append(x.mean().item())
        activations.append(out.detach())
        log.append(len(x))
        return out


class Numbers(nn.Module):
    n = 0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x):
        global seen
        seen += len(x)
        Numbers.n += len(x)
        counts["n"] += len(x)
        signs.update((x[:, 0] > 0).tolist())
        total.add_(x.sum())
        histogram[:] += np.histogram(x.numpy(), bins=4, range=(-2, 2))[0]
        meter.n += len(x)
        note(x)
        return self.linear(x)


def closed_over():
    n, log = 0, []

    class Within(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x):
            nonlocal n
            n += len(x)
            log.append(n)
            return self.linear(x)

    return Within(), lambda: (n, log)


x = torch.randn(26, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
within, counted = closed_over()
models = [Lists(), Numbers(), within]
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.05)
# %% cell
for epoch in range(2):
    for xb, yb in loader:
        loss = sum(F.mse_loss(model(xb), yb) for model in models)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, seen, counts, signs[True], meter.n, len(activations))
# %% compare
notes, activations, counts, signs, total, histogram, meter.n, note.n, seen, Numbers.n, counted(), Lists.forward.__defaults__

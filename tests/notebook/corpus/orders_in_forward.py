# Models that mix the samples of their batch in an order which Python, NumPy or a generator of theirs draws, and that draw numbers so.
# %% setup
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(50, 3)
loader = DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), batch_size=16, shuffle=True)


def in_numpys_order(h):
    return h[torch.from_numpy(np.random.permutation(h.size(0)))]


def in_pythons_order(h):
    order = list(range(len(h)))
    random.shuffle(order)
    return h[order]


def with_noise(h):
    return h + torch.from_numpy(np.random.normal(0, 0.1, (h.shape[0], 1))).to(h.dtype)


def where_coins_say(h):
    return torch.stack([row if random.random() < 0.5 else -row for row in h])


def by_one_number(h):
    return h * random.random()


class InOwnOrder:
    def __init__(self):
        self.generator = np.random.default_rng(5)

    def __call__(self, h):
        return h[self.generator.permutation(len(h))]


class Keeping:
    def __init__(self):
        self.generator = random.Random(5)
        self.last = None

    def __call__(self, h):
        self.last = h.detach()
        return h * self.generator.random()


class Mixing(nn.Module):
    def __init__(self, other):
        super().__init__()
        self.first, self.last, self.other = nn.Linear(3, 6), nn.Linear(6, 2), other

    def forward(self, x):
        h = self.first(x).relu()
        share = np.random.beta(0.4, 0.4)
        self.share = torch.tensor(share) if isinstance(self.other, Keeping) else None  # it is called once more
        return self.last(share * h + (1 - share) * self.other(h))


ways = (in_numpys_order, in_pythons_order, with_noise, where_coins_say, by_one_number, InOwnOrder(), Keeping())
models = [Mixing(way) for way in ways]
losses = []
# %% cell
for model in models:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
after = random.random(), np.random.rand()
# %% compare
[m.state_dict() for m in models], losses, after

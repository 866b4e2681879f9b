# What the modules draw with and write to, by names of its own: the same streams as `random`, `numpy.random` and `sys.stdout`.
# %% setup
import random
import sys
from random import choices, sample, shuffle

import numpy as np
import torch
from numpy.random import permutation, randn
from torch import default_generator, nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(1)
np.random.seed(2)
x = torch.randn(30, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True, generator=default_generator)
write = sys.stdout.write
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
# %% cell
from random import randint, seed

drawn = []
for epoch in range(2):
    for xb, yb in loader:
        noise = torch.from_numpy(np.float32(randn(*xb.shape) + 0.1 * np.random.rand()))
        kept = [*range(len(xb))]
        shuffle(kept)
        kept = torch.tensor(sample(kept, len(kept) // 2) + random.choices(kept, k=2) + choices(kept, k=1))
        loss = (model(xb + 0.1 * noise) - yb)[kept].pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        drawn.append((random.random(), randint(1, 1000), permutation(4).tolist(), torch.rand(1, generator=default_generator).item()))
    seed(epoch)
    np.random.seed(epoch)
    write(f"epoch {epoch}: {drawn[-1][:3]}\n")
# %% compare
model.state_dict(), drawn, (randint(1, 1000), random.random(), float(randn()), np.random.rand(), seed(4), random.random(), seed == random.seed)

# Code in a module beside the notebook: generators and functions of PyTorch's under names of its own, and one that the cell imports itself.
# %% setup
import sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader

Path("augmented.py").write_text("""
import random
import numpy as np
import torch
from torch.utils.data import Dataset

rng, noise = np.random.default_rng(5), torch.Generator().manual_seed(3)
coin = random.Random(7)

def jitter(x):
    return x + torch.from_numpy(rng.normal(size=4)) / 10

class Flip:
    coin = coin

    def __call__(self, x):
        return -x if self.coin.random() < 0.5 else x

class Jittered(Dataset):
    def __init__(self, inputs, *transforms):
        self.inputs, self.transforms = inputs, transforms

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        x = self.inputs[index]
        for transform in self.transforms:
            x = transform(x)
        return x, (self.inputs[index].sum() > 0).long()

def noisy(samples):
    x, y = map(torch.stack, zip(*samples))
    return x + 0.1 * torch.randn(x.shape, generator=noise), y
""")
Path("penalties.py").write_text("""
from torch import tensor
from torch.autograd import grad
from torch.nn.functional import cross_entropy

def penalized(model, x, y):
    x.requires_grad_(True)
    out = model(x)
    slope = grad(out.sum(), x, create_graph=True)[0]
    return cross_entropy(out, y) + slope.pow(2).mean() + grad(out.pow(2).mean(), x, retain_graph=True)[0].abs().max() * tensor(y).double().mean()
""")
Path("measures.py").write_text("""
from torch import as_tensor, tensor
from torch.autograd import grad

def steepness(model, x):
    x = x.detach().requires_grad_(True)
    return grad(model(x).pow(2).mean(), x)[0].abs().max().item(), tensor(x.detach()).sum().item() + as_tensor(x).max().item()
""")
for name in ("augmented", "penalties"):
    sys.modules.pop(name, None)
import augmented
from augmented import Flip, Jittered, jitter, noisy
from penalties import penalized

inputs = torch.randn(29, 4)
by_name = DataLoader(Jittered(inputs, lambda x: augmented.jitter(x)), batch_size=8, shuffle=True)
loaders = [
    DataLoader(Jittered(inputs, jitter), batch_size=8, shuffle=True),
    DataLoader(Jittered(inputs, Flip()), batch_size=8),
    DataLoader(Jittered(inputs), batch_size=8, collate_fn=noisy),
    by_name,
]
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# %% cell
import measures
history = []
for epoch in range(2):
    for loader in loaders:
        for x, y in loader:
            loss = penalized(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append((loss.item(), *measures.steepness(model, x)))
# %% compare
model.state_dict(), history, augmented.rng.normal(), torch.rand(1, generator=augmented.noise), augmented.coin.random(), sys.modules["penalties"].grad is torch.autograd.grad

# Random numbers of generators that are names of the notebook: in a data set, in a transform, in a collate function.
# %% setup
from functools import partial
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

rng, noise = np.random.default_rng(5), torch.Generator().manual_seed(3)
inputs = torch.randn(29, 4)
targets = (inputs.sum(1) > 0).long()

def jitter(x):
    return x + torch.from_numpy(rng.normal(size=4)) / 10

class Jittered(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return len(inputs)

    def __getitem__(self, index):
        return self.transform(inputs[index]), targets[index]

def noisy(samples, scale):
    x, y = map(torch.stack, zip(*samples))
    return x + scale * torch.randn(x.shape, generator=noise), y

loaders = [
    DataLoader(Jittered(lambda x: jitter(x)), batch_size=8, shuffle=True),
    DataLoader(Jittered(nn.Identity()), batch_size=8, collate_fn=partial(noisy, scale=0.1)),
]
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# %% cell
history = []
for epoch in range(2):
    for loader in loaders:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
# %% compare
model.state_dict(), history, rng.normal(), torch.rand(1, generator=noise)

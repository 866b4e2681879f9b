# Iterable data, with and without a length, batches made by the data set itself (batch_size=None), and a worker.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        g = torch.Generator().manual_seed(3)
        for i in range(self.n):
            x = torch.randn(4, generator=g)
            yield x, x.sum()

class Batches(IterableDataset):
    def __iter__(self):
        for i in range(3):
            x = torch.randn(6, 4)
            yield x, x.sum(1)

model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
loaders = [DataLoader(Stream(19), batch_size=5), DataLoader(Batches(), batch_size=None), DataLoader(Stream(7), batch_size=4, drop_last=True)]
# %% cell
log = []
for loader in loaders:
    for step, (x, y) in enumerate(loader):
        opt.zero_grad()
        loss = ((model(x)[:, 0] - y) ** 2).mean()
        loss.backward()
        opt.step()
        log.append((step, len(x), loss.item()))
    print(log[-1])
# %% compare
model.state_dict(), log

# WeightedRandomSampler, SubsetRandomSampler and a batch sampler of one's own, one after the other.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

y = torch.tensor([0] * 30 + [1] * 7)
X = torch.randn(37, 4) + y[:, None]
data = TensorDataset(X, y, torch.arange(37))

class BucketSampler(Sampler):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        order = torch.randperm(self.n).tolist()
        start = 0
        for size in (3, 7, 1, 12, 2):
            yield order[start : start + size]
            start += size

    def __len__(self):
        return 5

weights = 1.0 / torch.bincount(y).double()
loaders = [
    DataLoader(data, batch_size=8, sampler=WeightedRandomSampler(weights[y], 20)),
    DataLoader(data, batch_size=5, sampler=SubsetRandomSampler(range(0, 37, 2)), drop_last=True),
    DataLoader(data, batch_sampler=BucketSampler(37)),
    DataLoader(data, batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(5)),
]
model = nn.Linear(4, 1)
opt = torch.optim.Adam(model.parameters(), lr=0.05)
# %% cell
used, losses = [], []
for epoch in range(2):
    for loader in loaders:
        used.append([])
        for x, t, index in loader:
            p = torch.sigmoid(model(x)).flatten()
            loss = -(t * torch.log(p + 1e-8) + (1 - t) * torch.log(1 - p + 1e-8)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            used[-1].extend(index.tolist())
        print(len(loader), sum(losses[-len(loader):]), used[-1][:3])
# %% compare
model.state_dict(), opt.state_dict(), used, losses

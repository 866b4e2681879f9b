# Batch samplers and samplers that draw when an iteration begins, with no generator: PyTorch asks them before it draws the loader's seed.
# %% setup
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset
X = torch.randn(30, 4); Y = X.sin().sum(1, keepdim=True)
net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), .1); seen = []
class Batches:
    def __iter__(self):
        order = torch.randperm(30).tolist()
        return iter([order[k:k + 7] for k in range(0, 30, 7)])
    def __len__(self): return 5
class Order(Sampler):
    def __init__(self): pass
    def __iter__(self): return iter(torch.randperm(30).tolist())
    def __len__(self): return 30
data = TensorDataset(X, Y)
loaders = [DataLoader(data, batch_sampler=Batches()), DataLoader(data, 7, sampler=Order()), DataLoader(data, batch_sampler=BatchSampler(Order(), 7, False))]
loaders += [DataLoader(data, batch_sampler=Batches(), num_workers=2), DataLoader(data, 7, sampler=Order(), generator=torch.Generator().manual_seed(3))]
# %% cell
for loader in loaders:
    for x, y in loader:
        loss = F.mse_loss(net(x), y)
        opt.zero_grad(); loss.backward(); opt.step(); seen.append(loss.item())
for (x, y), (others, targets) in zip(iter(loaders[0]), iter(loaders[0])):  # two iterators of one loader
    loss = F.mse_loss(net(x), y) + F.mse_loss(net(others), targets)
    opt.zero_grad(); loss.backward(); opt.step(); seen.append(loss.item())
# %% compare
seen, net.state_dict()

# Loaders that are not PyTorch's own class: torchdata's, one with an iterator of its own, one around another, one that shuffles a list.
# %% setup
import random
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torchdata.stateful_dataloader import StatefulDataLoader
X = torch.randn(30, 4); Y = X.sin().sum(1, keepdim=True); data = TensorDataset(X, Y)
net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), .1); seen = []; yielded = []
class Iterator(_SingleProcessDataLoaderIter):
    def _next_data(self): x, y = super()._next_data(); return x + 1, y
class Own(DataLoader):
    def _get_iterator(self): return Iterator(self)
class Around:
    def __init__(self, loader): self.loader = loader
    def __iter__(self):
        for x, y in self.loader: yield x * 2, y
class Shuffled:
    def __init__(self): self.order = list(range(30)); self.epoch = 0
    def __iter__(self):
        random.shuffle(self.order); self.epoch += 1
        for k in range(0, 30, 8): yield X[self.order[k:k + 8]] * self.epoch, Y[self.order[k:k + 8]]
stateful, shuffled = StatefulDataLoader(data, batch_size=8, shuffle=True), Shuffled()
gone_on = StatefulDataLoader(data, batch_size=8, shuffle=True, collate_fn=lambda samples: [torch.stack(part) for part in zip(*samples)])
iterator = iter(stateful); next(iterator); gone_on.load_state_dict(stateful.state_dict()); del iterator
loaders = [stateful, gone_on, Own(data, 8, shuffle=True, generator=torch.Generator().manual_seed(2)), Around(DataLoader(data, 8, shuffle=True)), shuffled]
# %% cell
for epoch in range(2):
    for loader in loaders:
        for i, (x, y) in enumerate(loader):
            loss = F.mse_loss(net(x), y)
            opt.zero_grad(); loss.backward(); opt.step(); seen.append((i, loss.item()))
            if loader is stateful: yielded.append(stateful.state_dict()["_num_yielded"])
# %% compare
seen, net.state_dict(), yielded, shuffled.order, shuffled.epoch

# Tensors in shared memory, by which the epoch reaches workers that live on, and workers fill a common cache.
# %% setup
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
X = torch.randn(24, 4); Y = X.sin().sum(1, keepdim=True); seen = []
net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), .1); net.share_memory()
class Data(Dataset):
    def __init__(self):
        self.epoch = torch.zeros(3).share_memory_(); self.array = self.epoch.numpy(); self.views = [self.epoch[1:]]
        self.cache = torch.zeros(24, 4).share_memory_(); self.filled = torch.zeros(24, dtype=torch.bool).share_memory_()
    def __len__(self): return 24
    def __getitem__(self, i):
        if not self.filled[i]: self.cache[i] = X[i] * 2; self.filled[i] = True
        return self.cache[i] + self.array[1], Y[i]
class Stream(IterableDataset):
    def __init__(self): self.last, self.read = torch.tensor([8]).share_memory_(), torch.zeros(2, dtype=torch.long).share_memory_()
    def __iter__(self):
        number = get_worker_info().id
        for i in range(number, int(self.last), 2):
            self.read[number] += 1
            yield X[i], Y[i]
stream = Stream(); streaming = DataLoader(stream, 4, num_workers=2, persistent_workers=True)
ds = Data(); cache = ds.cache; dl = DataLoader(ds, 6, num_workers=2, shuffle=True, persistent_workers=True)
# %% cell
made = torch.ones(2).share_memory_()
for e in range(3):
    ds.views[0][0] = e / 4
    for x, y in dl:
        loss = F.mse_loss(net(x), y)
        opt.zero_grad(); loss.backward(); opt.step(); seen.append(loss.item())
    seen.append(int(ds.filled.sum()))
    stream.last += 4
    for x, y in streaming:
        loss = F.mse_loss(net(x), y)
        opt.zero_grad(); loss.backward(); opt.step(); seen.append(loss.item())
# %% compare
seen, net.state_dict(), stream.last, stream.read, ds.epoch, ds.array.tolist(), ds.cache, cache is ds.cache, [t.is_shared() for t in (ds.epoch, ds.cache, ds.views[0], net.weight, made)], ds.views[0].data_ptr() == ds.epoch[1:].data_ptr(), ds.array.ctypes.data == ds.epoch.data_ptr()

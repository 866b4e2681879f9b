# A collate_fn that counts its batches, and changes the size of images with every second one, as for detectors.
# %% setup
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
class D(Dataset):
    def __init__(self): self.x = torch.randn(21, 1, 8, 8); self.batch_count = 0; self.size = 8
    def __len__(self): return 21
    def __getitem__(self, i): return self.x[i], self.x[i].mean()
    def collate_fn(self, items):
        if self.batch_count % 2 == 0: self.size = (8, 6, 4)[self.batch_count // 2 % 3]
        self.batch_count += 1
        x, y = zip(*items)
        return F.interpolate(torch.stack(x), size=self.size), torch.stack(y)
data = D(); dl = DataLoader(data, 4, collate_fn=data.collate_fn)
net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1)); opt = torch.optim.SGD(net.parameters(), .1)
# %% cell
for epoch in range(2):
    for x, y in dl:
        loss = F.mse_loss(net(x)[:, 0], y)
        opt.zero_grad(); loss.backward(); opt.step()
        print(tuple(x.shape), data.batch_count, f"{loss.item():.6f}")
# %% compare
net.state_dict(), data.batch_count, data.size

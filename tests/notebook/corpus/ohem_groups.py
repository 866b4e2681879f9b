# Losses kept by sample and by group: a memory bank, the hardest of a batch, weights of groups.
# %% setup
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

X = torch.randn(29, 6)
Y = (X.sum(1) > 0).long() + (X[:, 0] > 1).long()


class Idx(Dataset):
    def __len__(self):
        return 29

    def __getitem__(self, i):
        return X[i], Y[i], i, i % 4


net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
opt = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(Idx(), batch_size=8, shuffle=True)
all_losses = torch.zeros(29)
bank = torch.zeros(29, 3)
q = torch.ones(4) / 4
counts = np.zeros(29, dtype=int)
# %% cell
hist = []
for ep in range(3):
    for x, y, idx, g in loader:
        out = net(x)
        per = F.cross_entropy(out, y, reduction="none")
        all_losses[idx] = per.detach()
        bank[idx] = 0.5 * bank[idx] + 0.5 * F.normalize(out.detach(), dim=1)
        counts[idx.numpy()] += 1
        gmap = (g == torch.arange(4).unsqueeze(1).long()).to(X.dtype)
        gc = gmap.sum(1)
        denom = gc + (gc == 0).to(X.dtype)
        gl = (gmap @ per.view(-1)) / denom
        q = q * torch.exp(0.01 * gl.data)
        q = q / q.sum()
        hard, where = per.topk(max(1, int(0.5 * len(per))))
        thr = per.median()
        loss = gl @ q + hard.mean() + per[per > thr].sum() / per.numel()
        opt.zero_grad()
        loss.backward()
        opt.step()
        hist.append((loss.item(), idx[where].sort()[0].tolist(), thr.item()))
    w = torch.softmax(all_losses, 0)
    print(w.argmax().item(), counts.sum())
# %% compare
net.state_dict(), all_losses, bank, q, counts.tolist(), hist

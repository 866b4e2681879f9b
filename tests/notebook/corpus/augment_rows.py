# Augmentation of single rows in the cell, one-hot by scatter and by eye, NaN checks, shapes printed, slices kept, figures of a batch.
# %% setup
import random
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.rand(22, 1, 6, 6), torch.randint(4, (22,))), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
# %% cell
kept, grids, losses = [], [], []
for epoch in range(2):
    for i, (images, labels) in enumerate(loader):
        if i == 0:
            print(images.shape, labels.shape, images.dtype, labels[:4], images.min().item() >= 0, len(images))
        for k in range(images.size(0)):
            if random.random() < 0.5:
                r, c = random.randint(0, 3), random.randint(0, 3)
                images[k, :, r : r + 2, c : c + 2] = 0.0
            if random.random() < 0.3:
                images[k] = torch.flip(images[k], dims=[-1])
        first = images[0]
        first.mul_(0.5).add_(0.1)
        y_onehot = torch.zeros(labels.size(0), 4).scatter_(1, labels.view(-1, 1), 1)
        also = torch.eye(4)[labels]
        assert torch.equal(y_onehot, also)
        targets = y_onehot * 0.9 + 0.1 / 4
        out = model(images)
        if torch.isnan(out).any() or not torch.isfinite(out).all():
            raise ValueError("nan")
        loss = -(targets * F.log_softmax(out, dim=1)).sum(dim=1).mean()
        picked = out[range(len(labels)), labels]
        also_picked = out.gather(1, labels.unsqueeze(1)).squeeze(1)
        margin = (picked - out.max(1).values).mean()
        loss = loss - 0.01 * also_picked[torch.arange(len(labels))].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((loss.item(), margin.item()))
        if i == 1:
            kept.append(images[:2].clone())
            grids.append(np.transpose(images[0].numpy(), (1, 2, 0)))
            order = out.argsort(dim=1, descending=True)[:, 0]
            confusion = torch.zeros(4, 4, dtype=torch.int64)
            for t, p in zip(labels.view(-1), order.view(-1)):
                confusion[t.long(), p.long()] += 1
            counts = torch.bincount(labels, minlength=4)
            print(confusion.diag() / confusion.sum(1).clamp(min=1), counts)
worst = torch.topk(F.cross_entropy(out, labels, reduction="none"), 2)
# %% compare
model.state_dict(), optimizer.state_dict(), kept, grids, losses, confusion, worst.values, worst.indices, counts

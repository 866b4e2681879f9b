# Training by steps: an infinite generator over a loader, zip with a second one, masks and weights per sample, deep supervision, logs per step.
# %% setup
import logging
from itertools import cycle, islice
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

labelled = DataLoader(TensorDataset(torch.randn(14, 4), torch.randint(3, (14,)), torch.rand(14)), batch_size=4, shuffle=True)
unlabelled = DataLoader(TensorDataset(torch.randn(22, 4)), batch_size=8, shuffle=True)

def forever(loader):
    while True:
        for batch in loader:
            yield batch

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.heads = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])
    def forward(self, x):
        outs = []
        for block, head in zip(self.blocks, self.heads):
            x = torch.tanh(block(x))
            outs.append(head(x))
        return outs

model = Net()
optimizer = torch.optim.AdamW([{"params": model.blocks.parameters(), "lr": 0.01}, {"params": model.heads.parameters(), "lr": 0.05, "weight_decay": 0.0}])
# %% cell
stats = {"loss": [], "mask": [], "grad": []}
batches = forever(labelled)
for step in range(5):
    x, y, weight = next(batches)
    outs = model(x)
    losses = [F.cross_entropy(o, y, reduction="none") for o in outs]
    per_sample = torch.stack(losses).mean(0)
    loss = (per_sample * weight).sum() / weight.sum()
    hard = per_sample > per_sample.mean()
    if hard.any():
        loss = loss + 0.1 * per_sample[hard].mean()
    optimizer.zero_grad()
    loss.backward()
    stats["grad"].append([float(p.grad.abs().mean()) for p in model.parameters()])
    optimizer.step()
    stats["loss"].append(loss.item())
for (x, y, w), (u,) in islice(zip(cycle(labelled), unlabelled), 3):
    probs = F.softmax(model(u)[-1].detach(), dim=1)
    max_probs, pseudo = probs.max(dim=1)
    mask = max_probs.ge(0.4).double()
    n = len(x)
    logits = model(torch.cat([x, u]))[-1]
    loss = F.cross_entropy(logits[:n], y) + (F.cross_entropy(logits[n:], pseudo, reduction="none") * mask).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stats["mask"].append(mask.mean().item())
    print(f"{loss.item():.6f} {mask.mean():.3f} {loss=:.3f}")
del batches
# %% compare
model.state_dict(), optimizer.state_dict(), stats

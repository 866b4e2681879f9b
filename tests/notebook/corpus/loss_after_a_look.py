# A model with dropout is tried once to see its shapes, then it returns its own loss: a later call shows that it is no function of samples.
# Another one counts its calls, and begins to keep what comes out of its BatchNorm.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))
    def forward(self, x, targets=None):
        logits = self.net(x)
        return logits, None if targets is None else F.cross_entropy(logits, targets)

class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.keep, self.calls = nn.Linear(4, 2, bias=False), nn.BatchNorm1d(2), False, 0
    def forward(self, x):
        h = self.norm(self.linear(x))
        self.calls += 1
        if self.keep:
            self.h = h.detach()
        return F.dropout(h, 0.5, self.training)

loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randint(0, 3, (20,))), batch_size=8, shuffle=True)
model, watched = GPT(), Watched()
opt = torch.optim.AdamW([*model.parameters(), *watched.parameters()], lr=1e-2)
# %% cell
x, y = next(iter(loader))
print(model(x)[0].shape)
losses = []
for epoch in range(2):
    watched.keep = epoch == 1
    for x, y in loader:
        loss = watched(x).square().mean() + model(x, y)[1]
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
print(losses)
# %% compare
model.state_dict(), watched.state_dict(), watched.calls, watched.h, losses

# Labels of which few are missing: the first batch that has one comes in the middle of the second epoch's validation and training.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(70, 6)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0.4).long()
y[61] = y[3] = -1
loader = DataLoader(TensorDataset(x, y), batch_size=5, sampler=[*range(10, 60)])
rest = DataLoader(TensorDataset(x, y), batch_size=7)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
opt = torch.optim.AdamW(model.parameters(), lr=2e-2)
# %% cell
losses = []
for epoch in range(3):
    model.train()
    for xb, yb in loader if epoch != 1 else rest:
        opt.zero_grad()
        loss = F.cross_entropy(model(xb), yb, ignore_index=-1)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: {sum(losses) / len(losses):.6f}")
# %% compare
model.state_dict(), opt.state_dict(), losses

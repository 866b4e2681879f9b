# Hand-made accumulation: loss / k, a step every k batches and at the end, OneCycleLR per step.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(44, 5)
loader = DataLoader(TensorDataset(x, x.pow(2).sum(1)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(5, 9), nn.SiLU(), nn.Linear(9, 1))
accum = 3
epochs = 2
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=5e-2, total_steps=epochs * -(-len(loader) // accum))
# %% cell
lrs, hist = [], []
for epoch in range(epochs):
    opt.zero_grad()
    for step, (xb, yb) in enumerate(loader):
        loss = F.mse_loss(model(xb).squeeze(), yb) / accum
        loss.backward()
        hist.append(loss.item() * accum)
        if (step + 1) % accum == 0 or (step + 1) == len(loader):
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.7)
            opt.step()
            sched.step()
            opt.zero_grad()
            lrs.append(opt.param_groups[0]["lr"])
            print(f"step {step} lr {lrs[-1]:.5f}")
# %% compare
model.state_dict(), opt.state_dict(), sched.state_dict(), lrs, hist

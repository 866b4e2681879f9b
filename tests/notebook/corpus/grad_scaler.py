# A GradScaler alone, in float64: scale, unscale, skip of a step with an inf, dynamic scale.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(36, 3)
X[7] = 1e200
loader = DataLoader(TensorDataset(X, X.clamp(-1, 1).sum(1, keepdim=True)), batch_size=8)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
# %% cell
scales, skipped = [], 0
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        skipped += scales[-1] < before
print(scales, skipped)
# %% compare
model.state_dict(), scaler.state_dict(), scales, skipped

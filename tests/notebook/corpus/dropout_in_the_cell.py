# Dropout in the cell's own code, between two models: drawn for the whole batch, as on one process.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(25, 4), torch.randn(25, 1)), batch_size=8, shuffle=True)
a, b = nn.Linear(4, 6), nn.Linear(6, 1)
optimizer = torch.optim.Adam([*a.parameters(), *b.parameters()], lr=0.01)
drop = nn.Dropout(0.3)
# %% cell
losses = []
for epoch in range(2):
    for x, y in loader:
        hidden = drop(torch.relu(a(x)))
        out = b(F.dropout(hidden, 0.2))
        loss = F.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(losses[-1])
# %% compare
a.state_dict(), b.state_dict(), losses

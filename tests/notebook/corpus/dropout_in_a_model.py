# Dropout inside a model: the masks are drawn for the whole batch.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.randn(32, 1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
# %% cell
losses = []
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(losses[-1])
# %% compare
model.state_dict(), optimizer.state_dict(), losses

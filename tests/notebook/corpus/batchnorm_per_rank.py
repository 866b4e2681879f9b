# per rank: BatchNorm takes its statistics over the rank's share.
# A CNN with BatchNorm: on engines the statistics are those of a share.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(32, 1, 5, 5), torch.randint(0, 2, (32,))), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
# %% cell
losses = []
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(losses[-1])
# %% compare
{name: value for name, value in model.state_dict().items() if "running" not in name}, optimizer.state_dict(), losses

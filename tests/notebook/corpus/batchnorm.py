# A CNN with BatchNorm: its statistics are those of the global batch, the running ones too; a last batch smaller than the world.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(35, 1, 5, 5) + 3, torch.randint(0, 2, (35,))), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))
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
model.state_dict(), optimizer.state_dict(), losses

# Scripted and traced models of another cell: one that is trained, one that only gives features.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

inputs = torch.randn(29, 4)
loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=8, shuffle=True)
features = torch.jit.trace(nn.Sequential(nn.Linear(4, 6), nn.Tanh()).eval(), inputs[:2])
for p in features.parameters():
    p.requires_grad_(False)
model = nn.Sequential(torch.jit.script(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
# %% cell
history = []
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(features(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
# %% compare
model.state_dict(), history, optimizer.state_dict(), [p is q for p, q in zip(model.parameters(), optimizer.param_groups[0]["params"])]

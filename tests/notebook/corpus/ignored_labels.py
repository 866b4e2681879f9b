# Some labels of a plain classification are -100: semi-supervised, ignore_index at its default.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(40, 4)
y = torch.randint(0, 3, (40,))
y[::3] = -100
loader = DataLoader(TensorDataset(X, y), batch_size=9, shuffle=True)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
# %% cell
losses = []
for epoch in range(2):
    for xb, yb in loader:
        loss = criterion(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(losses[-1])
# %% compare
model.state_dict(), losses

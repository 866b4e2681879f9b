# Early stopping on the training loss itself, which every rank must see alike; nan check, assert, and min() over floats.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.linspace(-1, 1, 31).unsqueeze(1)
loader = DataLoader(TensorDataset(X, X**3), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
# %% cell
best = 1e9
bad = 0
stop = False
for epoch in range(20):
    for xb, yb in loader:
        loss = nn.MSELoss()(model(xb), yb)
        if torch.isnan(loss):
            print("nan")
            break
        assert loss > 0 and torch.isfinite(loss).all()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < best:
            best, bad = loss, 0
        else:
            bad += 1
        if bad > 3:
            stop = True
            break
    best = min(best, loss)
    if stop:
        break
print("stopped in epoch", epoch, "best", best, "is", best.item())
# %% compare
model.state_dict(), optimizer.state_dict(), best, bad, epoch, loss

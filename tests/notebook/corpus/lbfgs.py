# LBFGS with a closure, over a loader and over all of the data; strong Wolfe line search.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.linspace(-2, 2, 30).unsqueeze(1)
y = X**2
loader = DataLoader(TensorDataset(X, y), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, line_search_fn="strong_wolfe")
loss_fn = nn.MSELoss()
# %% cell
history = []
for epoch in range(2):
    for xb, yb in loader:
        def closure():
            optimizer.zero_grad()
            loss = loss_fn(model(xb), yb)
            loss.backward()
            return loss
        loss = optimizer.step(closure)
        history.append(loss.item())
    print(f"epoch {epoch} loss {loss:.8f}")
def full():
    optimizer.zero_grad()
    loss = loss_fn(model(X), y)
    loss.backward()
    return loss
optimizer.step(full)
print(float(full()))
# %% compare
model.state_dict(), history

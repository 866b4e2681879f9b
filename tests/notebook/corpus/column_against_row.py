# A loss of an output with one column against targets without: PyTorch warns, and takes all pairs of samples.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(50, 3)
loader = DataLoader(TensorDataset(X, X.sum(1)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
criterion = nn.MSELoss()
history = []
# %% cell
for epoch in range(2):
    running_loss = 0.0
    running_mae = 0.0
    for inputs, targets in loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * inputs.size(0)
        running_mae += (outputs - targets).abs().mean().item()
    history.append((running_loss / len(X), running_mae / len(loader)))
    print(f"epoch {epoch}: {history[-1][0]:.6f} {history[-1][1]:.6f}")
# %% compare
model.state_dict(), history

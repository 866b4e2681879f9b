# Models, loaders and optimizers made in the cell, in a loop over settings; the best setting kept.
# %% setup
import itertools
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(45, 3)
Y = (X[:, :1] * X[:, 1:2]).detach()
train_set, val_set = torch.utils.data.random_split(TensorDataset(X, Y), [33, 12])

class MLP(nn.Module):
    def __init__(self, hidden, activation):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, hidden), activation(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)
# %% cell
results = {}
best = (float("inf"), None, None)
for hidden, lr, batch_size in itertools.product([4, 8], [0.1], [8, 16]):
    torch.manual_seed(hidden)
    model = MLP(hidden, nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=batch_size)
    for epoch in range(2):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            val = sum(nn.functional.mse_loss(model(x), y, reduction="sum").item() for x, y in val_loader) / len(val_set)
    results[hidden, lr, batch_size] = (loss.item(), val)
    if val < best[0]:
        best = (val, (hidden, lr, batch_size), {k: v.clone() for k, v in model.state_dict().items()})
    print(hidden, lr, batch_size, f"{val:.6f}")
print("best", best[1])
# %% compare
results, best, model.state_dict()

# Full batch in mini-batches by a permutation: no loader, torch.randperm and slices of it.
# %% setup
import torch
from torch import nn

X = torch.randn(40, 3)
Y = (X[:, :1] > 0).double()
model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1), nn.Sigmoid())
loss_fn = nn.BCELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
batch_size = 12
# %% cell
for epoch in range(3):
    permutation = torch.randperm(X.size(0))
    for i in range(0, len(X), batch_size):
        indices = permutation[i : i + batch_size]
        Xbatch = X[indices]
        y_pred = model(Xbatch)
        ybatch = Y[indices]
        loss = loss_fn(y_pred, ybatch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"Finished epoch {epoch}, latest loss {loss:.6f}")
accuracy = (model(X).round() == Y).double().mean()
print(f"Accuracy {accuracy}")
# %% compare
model.state_dict(), optimizer.state_dict(), accuracy, permutation

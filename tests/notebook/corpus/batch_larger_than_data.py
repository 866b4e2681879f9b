# Batches smaller than the number of engines: batch_size 1, a last batch of one, RMSE of it, and a data set of two.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(9, 3)
Y = X.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
opt = torch.optim.Adam(model.parameters(), lr=0.05)
loaders = [
    DataLoader(TensorDataset(X[:3], Y[:3]), batch_size=1, shuffle=True),
    DataLoader(TensorDataset(X, Y), batch_size=4),
    DataLoader(TensorDataset(X[:2], Y[:2]), batch_size=64, shuffle=True),
]
# %% cell
log = []
for loader in loaders:
    for epoch in range(2):
        for x, y in loader:
            out = model(x)
            rmse = torch.sqrt(nn.functional.mse_loss(out, y))
            worst = (out - y).abs().max()
            loss = rmse + 0.1 * worst + 0.1 * (out**2).sum() + 0.01 * out.logsumexp(0).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            log.append([loss.item(), worst.item(), len(x), out.mean().item(), x.shape, (out > 0).sum().item()])
        print(len(loader), log[-1][0])
# %% compare
model.state_dict(), opt.state_dict(), log

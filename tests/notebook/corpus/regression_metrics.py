# RMSE loss, R2 and std of targets in the loop, L1 and L2 penalties over parameters, torch.stack of losses.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.rand(33, 4)
y = 3 * X[:, 0] - X[:, 1] ** 2
loader = DataLoader(TensorDataset(X, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 10), nn.ELU(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
criterion = nn.MSELoss()

def r2_score(pred, target):
    ss_res = torch.sum((target - pred) ** 2)
    ss_tot = torch.sum((target - torch.mean(target)) ** 2)
    return 1 - ss_res / ss_tot
# %% cell
l1_lambda, l2_lambda = 1e-3, 1e-2
history = []
losses = []
for epoch in range(2):
    for xb, yb in loader:
        pred = model(xb).squeeze(-1)
        rmse = torch.sqrt(criterion(pred, yb) + 1e-6)
        l1_norm = sum(p.abs().sum() for p in model.parameters())
        l2_norm = sum(p.pow(2.0).sum() for p in model.parameters())
        loss = rmse + l1_lambda * l1_norm + l2_lambda * l2_norm
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        mae = torch.abs(pred - yb).mean()
        history.append([rmse.item(), r2_score(pred, yb).item(), yb.std().item(), yb.var(unbiased=False).item(), mae.item(), yb.max().item(), pred.min().item()])
    total_norm = 0.0
    for p in model.parameters():
        total_norm += p.grad.data.norm(2).item() ** 2
    print(f"epoch {epoch} mean loss {torch.stack(losses).mean():.6f} grad norm {total_norm**0.5:.6f} last losses {torch.tensor(losses[-2:])}")
# %% compare
model.state_dict(), optimizer.state_dict(), history, losses, total_norm

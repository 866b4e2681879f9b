# Gradients from torch.autograd.grad that the cell gives to the parameters itself, of a model and of a weight by hand.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(50, 3)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
w = torch.randn(3, 1, requires_grad=True)
log = []
# %% cell
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    grads = torch.autograd.grad(loss, model.parameters())
    for p, g in zip(model.parameters(), grads):
        if g.dim() > 1:
            g = g - g.mean(dim=tuple(range(1, g.dim())), keepdim=True)
        p.grad = g + 0.01 * torch.randn_like(g)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    (w.grad,) = torch.autograd.grad((x @ w - y).pow(2).mean(), [w])
    with torch.no_grad():
        w -= 0.1 * w.grad
    log.append((loss.item(), norm.item()))
print(log[-1])
# %% compare
model.state_dict(), [p.grad for p in model.parameters()], w.detach(), w.grad, log

# torch.autograd.grad of a loss with respect to inputs and to parameters, a penalty on both, second order.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

t = torch.linspace(0, 1, 41).unsqueeze(1)
loader = DataLoader(TensorDataset(t), batch_size=12, shuffle=True)
pinn = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(pinn.parameters(), lr=0.02)
# %% cell
history = []
for epoch in range(2):
    for (tb,) in loader:
        tb = tb.clone().requires_grad_(True)
        u = pinn(tb)
        dudt = torch.autograd.grad(u, tb, torch.ones_like(u), create_graph=True)[0]
        d2udt2 = torch.autograd.grad(u.sum(), tb, create_graph=True)[0]
        residual = ((dudt + 2 * u) ** 2).mean() + 0.01 * (d2udt2**2).mean()
        start = torch.zeros(1, 1)
        loss = residual + (pinn(start) - 1).pow(2).mean()
        rmse = torch.sqrt(loss)
        grads = torch.autograd.grad(rmse, list(pinn.parameters()), create_graph=True)
        penalty = sum(g.pow(2).sum() for g in grads)
        optimizer.zero_grad()
        (loss + 1e-3 * penalty).backward()
        optimizer.step()
        history.append([loss.item(), penalty.item()])
    print(epoch, history[-1])
# %% compare
pinn.state_dict(), optimizer.state_dict(), history

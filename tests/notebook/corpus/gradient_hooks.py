# Hooks on parameters that clip and record gradients, gradient norms printed, gradient noise added by hand.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(30, 4)
loader = DataLoader(TensorDataset(X, X.pow(2).sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
# %% cell
seen = []
handles = [p.register_hook(lambda g: torch.clamp(g, -0.3, 0.3)) for p in model.parameters()]
handles.append(model[2].weight.register_hook(lambda g: seen.append(g.abs().max().item())))
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        norms = [p.grad.norm().item() for p in model.parameters()]
        for p in model.parameters():
            p.grad += 0.01 * torch.randn_like(p.grad)
        opt.step()
    print("grad norms", ["%.5f" % n for n in norms])
for handle in handles:
    handle.remove()
# %% compare
model.state_dict(), norms, seen

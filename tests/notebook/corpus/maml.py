# A first-order inner step by torch.autograd.grad and functional_call on a batch, the outer loss on another.
# %% setup
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(40, 3)
support = DataLoader(TensorDataset(X[:20], X[:20].sum(1, keepdim=True)), batch_size=6, shuffle=True)
query = DataLoader(TensorDataset(X[20:], X[20:].sum(1, keepdim=True)), batch_size=5, shuffle=True)
model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
meta = torch.optim.SGD(model.parameters(), lr=0.05)
# %% cell
log = []
for epoch in range(2):
    for (xs, ys), (xq, yq) in zip(support, query):
        params = dict(model.named_parameters())
        inner = nn.functional.mse_loss(functional_call(model, params, (xs,)), ys)
        grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(params.items(), grads)}
        outer = nn.functional.mse_loss(functional_call(model, fast, (xq,)), yq)
        meta.zero_grad()
        outer.backward()
        meta.step()
        log.append((inner.item(), outer.item()))
    print(epoch, log[-1])
# %% compare
model.state_dict(), log

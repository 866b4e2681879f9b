# DP-SGD: gradients of each sample by vmap, made in the cell before, clipped one by one and summed with noise.
# %% setup
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(37, 6), torch.randint(0, 3, (37,))), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(params, sample, target):
    return F.cross_entropy(functional_call(model, params, (sample.unsqueeze(0),)), target.unsqueeze(0))


per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
# %% cell
norms, losses = [], []
for epoch in range(2):
    for x, y in loader:
        params = {name: p.detach() for name, p in model.named_parameters()}
        grads = per_sample(params, x, y)
        assert all(len(g) == len(x) for g in grads.values())
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()], dim=1).norm(dim=1)
        clip = (0.8 / (norm + 1e-6)).clamp(max=1.0)
        for name, p in model.named_parameters():
            summed = torch.einsum("i,i...->...", clip, grads[name])
            p.grad = (summed + 0.08 * torch.randn_like(summed)) / len(x)
        optimizer.step()
        norms.append(norm.mean().item())
    with torch.no_grad():
        losses.append(sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in loader))
    print(f"epoch {epoch}: loss {losses[-1]:.6f}, norm {norms[-1]:.6f}")
# %% compare
model.state_dict(), optimizer.state_dict(), norms, losses

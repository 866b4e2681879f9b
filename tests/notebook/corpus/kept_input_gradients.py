# Gradients of a batch that the cell holds while passes add to them, set to zero, scaled in place, dropped.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(26, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
weight, delta, found = model[0].weight, torch.zeros(4, requires_grad=True), []
# %% cell
for xb, yb in loader:
    xb.requires_grad_()
    F.mse_loss(model(xb + delta), yb).backward()
    kept, column, copy, of_weight, of_delta = xb.grad, xb.grad[:, 0], xb.grad.clone(), weight.grad, delta.grad
    found.append([g.norm().item() for g in (kept, column, copy, of_weight, of_delta)])
    F.mse_loss(model(xb * 2 + delta), yb).backward()  # adds to what the cell holds
    found.append([g.norm().item() for g in (kept, column, copy, of_weight, of_delta)])
    found.append([kept is xb.grad, of_weight is weight.grad, of_delta is delta.grad])
    kept *= 0.5
    F.mse_loss(model(xb), yb, reduction="sum").backward()
    found.append([kept.norm().item(), xb.grad.norm().item()])
    (other,) = torch.autograd.grad(F.mse_loss(model(xb), yb), xb)  # adds to nothing
    found.append([kept.norm().item(), other.norm().item(), kept is xb.grad])
    xb.grad.zero_()
    found.append([kept.norm().item(), column.norm().item()])
    F.mse_loss(model(xb), yb).backward()
    found.append([kept.norm().item(), xb.grad.norm().item()])
    xb.grad = None
    F.mse_loss(model(xb), yb).backward()
    found.append([kept.norm().item(), xb.grad.norm().item(), kept is xb.grad])
    hidden = model[0](xb)
    hidden.retain_grad()
    out = model[2](model[1](hidden))
    F.mse_loss(out, yb).backward(retain_graph=True)
    of_hidden = hidden.grad
    found.append(of_hidden.norm().item())
    F.mse_loss(out, yb + 1).backward()
    found.append([of_hidden.norm().item(), hidden.grad.norm().item(), of_hidden is hidden.grad])
    model.zero_grad()
# %% compare
found, kept, copy, weight.grad

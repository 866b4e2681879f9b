# Networks of coordinates: derivatives by inputs that the model returns, by hidden values, and by what it keeps to itself.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

points = torch.rand(40, 2) * 2 - 1
loader = DataLoader(TensorDataset(points, (3 * points).sin().prod(1, keepdim=True)), batch_size=7, shuffle=True)
image = DataLoader(TensorDataset(torch.rand(1, 16, 2), torch.rand(1, 16, 1)))  # a single sample, which is the whole image


class Sines(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(2, 12), nn.Linear(12, 12), nn.Linear(12, 1)

    def forward(self, at):
        at = at.clone().detach().requires_grad_(True)
        hidden = torch.sin(self.second(torch.sin(5 * self.first(at))))
        return self.last(hidden), hidden, at


class Forces(nn.Module):
    """Differentiates inside; nobody sees by what."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, at):
        at = at.detach()
        at.requires_grad = True
        energy = self.energy(at)
        (force,) = torch.autograd.grad(energy.sum(), at, create_graph=True)
        return energy - force.sum(1, keepdim=True)


def gradient(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


sines, forces = Sines(), Forces()
optimizer = torch.optim.Adam([*sines.parameters(), *forces.parameters()], lr=1e-3)
# %% cell
history = []
for epoch in range(2):
    for at, values in loader:
        out, hidden, at = sines(at)
        slope = gradient(out, at)
        laplace = sum(gradient(slope[..., i], at)[..., i] for i in range(2))
        by_hidden = gradient(out, hidden)
        loss = F.mse_loss(out, values) + 1e-3 * (slope.pow(2).mean() + laplace.abs().mean() + by_hidden.norm(dim=1).mean())
        loss = loss + F.mse_loss(forces(at.detach()), values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append((loss.item(), laplace.sum().item(), at.is_leaf, at.grad.norm().item()))
    print(epoch, f"{loss.item():.6f}")
for at, values in loader:
    out, hidden, _ = sines(at)
    hidden.retain_grad()
    loss = F.mse_loss(out, values)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(hidden.grad.norm().item())
at, values = next(iter(image))
for step in range(3):
    out, _, coords = sines(at)
    loss = F.mse_loss(out, values) + 1e-2 * gradient(out, coords).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
# %% compare
sines.state_dict(), forces.state_dict(), optimizer.state_dict(), history, coords, coords.grad
